#include "tests/gpu/backend.hpp"

namespace kvtier::test {

std::vector<backend> backends() {
  backend cuda{"gpu0", {}};
  cuda.options.kind = gpu::device_kind::cuda;
  return {cuda};
}

}  // namespace kvtier::test
