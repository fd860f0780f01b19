#include <gtest/gtest.h>

#include "gpu/gpu.hpp"

namespace kvtier::gpu {
namespace {

TEST(make_device, opens_the_host_device_by_name) {
  device_options options;
  options.kind = device_kind::host;
  options.kv_cap_bytes = 1 << 20;
  options.host.threads = 1;
  const auto device = make_device(options);
  EXPECT_EQ(device->info().backend, "host");
  EXPECT_EQ(device->info().compute_units, 1u);
  EXPECT_GT(device->info().memory_bytes, options.kv_cap_bytes);
  EXPECT_EQ(device->memory().kv_cap_bytes, options.kv_cap_bytes);
}

TEST(make_device, automatic_takes_a_gpu_where_there_is_one) {
  device_options options;
  options.kv_cap_bytes = 1 << 20;
  options.host.threads = 1;
  EXPECT_EQ(make_device(options)->info().backend, cuda_available(nullptr) ? "cuda" : "host");
}

TEST(make_device, says_why_there_is_no_cuda) {
  std::string why;
  if (cuda_available(&why)) {
    GTEST_SKIP() << "there is a GPU";
  }
  EXPECT_FALSE(why.empty());
  device_options options;
  options.kind = device_kind::cuda;
  try {
    make_device(options);
    FAIL() << "opened a device that is not there";
  } catch (const device_error& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
}

TEST(make_device, refuses_a_cap_beyond_the_machine) {
  device_options options;
  options.kind = device_kind::host;
  options.kv_cap_bytes = std::uint64_t{1} << 60;
  EXPECT_THROW(make_device(options), out_of_memory);
}

}  // namespace
}  // namespace kvtier::gpu
