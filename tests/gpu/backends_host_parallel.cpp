// A host device with workers, and one that leaves destinations alone, as a release build would run.
#include "tests/gpu/backend.hpp"

namespace kvtier::test {

std::vector<backend> backends() {
  backend workers{"workers", {}};
  workers.options.kind = gpu::device_kind::host;
  workers.options.host.threads = 3;
  backend unpoisoned = workers;
  unpoisoned.name = "unpoisoned";
  unpoisoned.options.host.poison = false;
  return {workers, unpoisoned};
}

}  // namespace kvtier::test
