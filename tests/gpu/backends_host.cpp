// Host devices that run their kernels on the stream's thread, without oneTBB: TSan can watch them.
#include "tests/gpu/backend.hpp"

namespace kvtier::test {
namespace {

backend host(const std::string& name, std::uint64_t seed, std::uint32_t max_delay_us) {
  backend made{name, {}};
  made.options.kind = gpu::device_kind::host;
  made.options.host.threads = 1;
  made.options.host.delay_seed = seed;
  made.options.host.max_delay_us = max_delay_us;
  return made;
}

}  // namespace

std::vector<backend> backends() {
  return {host("prompt", 0, 0), host("seed1", 1, 400), host("seed2", 2, 400)};
}

}  // namespace kvtier::test
