// The proof that the host device shows missing waits: a pipeline whose result is right with all of
// them and wrong without any single one.
#include <gtest/gtest.h>

#include <optional>

#include "gpu/gpu.hpp"
#include "tests/gpu/pipeline.hpp"
#include "tests/support/wait_skipping_device.hpp"

namespace kvtier::test {
namespace {

/// Every second weather has a link so slow that compute waits for copies, the others compute so
/// slow that copies wait for it. Between them every wait is the last one to be fulfilled somewhere.
std::unique_ptr<gpu::device> open(std::uint64_t weather) {
  gpu::device_options options;
  options.kind = gpu::device_kind::host;
  options.kv_cap_bytes = pipeline::kv_bytes_needed;
  options.host.threads = 1;
  options.host.delay_seed = weather;
  if (weather % 2 == 0) {
    options.host.max_delay_us = 2000;
  } else {
    options.host.max_delay_us = 1000;
    options.host.copy_bytes_per_second = 4'000'000;
  }
  return gpu::make_device(options);
}

constexpr std::uint64_t weathers = 12;

class missing_waits : public testing::Test {
 protected:
  bool right_without(std::optional<std::uint64_t> skipped, std::uint64_t weather) {
    const auto device = open(weather);
    wait_skipping_device skipping(*device, skipped);
    const std::vector<float> merged = work_.run(skipping);
    waits_ = skipping.waits();
    return work_.is_right(merged);
  }

  const pipeline work_{1};
  std::uint64_t waits_ = 0;
};

TEST_F(missing_waits, with_all_of_them_the_result_is_right) {
  for (std::uint64_t weather = 0; weather < weathers; ++weather) {
    EXPECT_TRUE(right_without(std::nullopt, weather)) << "weather " << weather;
  }
}

TEST_F(missing_waits, without_any_single_one_the_result_is_wrong) {
  ASSERT_TRUE(right_without(std::nullopt, 0));
  const std::uint64_t waits = waits_;
  ASSERT_EQ(waits, 27u);
  for (std::uint64_t skipped = 0; skipped < waits; ++skipped) {
    bool caught = false;
    for (std::uint64_t weather = 0; weather < weathers && !caught; ++weather) {
      caught = !right_without(skipped, weather);
    }
    EXPECT_TRUE(caught) << "nobody noticed that wait " << skipped << " was missing";
  }
}

}  // namespace
}  // namespace kvtier::test
