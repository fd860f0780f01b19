#include "tests/gpu/device_test.hpp"

#include <random>

namespace kvtier::test {

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& b : made) {
    b = static_cast<std::byte>(random() & 0xffu);
  }
  return made;
}

INSTANTIATE_TEST_SUITE_P(on, device_test, testing::ValuesIn(backends()),
                         [](const auto& which) { return which.param.name; });

}  // namespace kvtier::test
