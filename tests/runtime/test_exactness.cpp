// Exact attention over any split of the context: every output against float64.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/runtime_kit.hpp"
#include "tests/support/toy_engine.hpp"

namespace kvtier {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

struct split {
  const char* name;
  std::uint32_t device_blocks_of_64;
  std::uint32_t host_blocks_of_64;  // 0 = no host tier
  bool disk;
};

config make_config(const split& how, std::uint32_t block_tokens, std::uint64_t seed) {
  config options;
  options.shape = test::small_shape();
  options.device = gpu::device_kind::host;
  options.block_tokens = block_tokens;
  options.ring_buffer_blocks = std::max(1u, 64 / block_tokens);
  const std::uint64_t block = 64 * options.shape.token_bytes();
  // At least two extents per lane.
  options.device_memory = std::max(how.device_blocks_of_64,
                                   2 * options.shape.layers * std::max(1u, block_tokens / 64)) *
                          block;
  if (how.host_blocks_of_64 > 0) {
    options.device_memory +=
        3 * std::max<std::uint64_t>(block_tokens, 64) * options.shape.token_bytes();
    // And five extents for what passes through host memory on its way to disk and back.
    options.host_memory =
        std::max(how.host_blocks_of_64, 6 * std::max(1u, block_tokens / 64)) * block + mib / 2;
  }
  if (how.disk) {
    options.disks.push_back(
        {.directory = std::filesystem::temp_directory_path(), .bytes = 8 * mib});
  }
  options.sinks = 64;
  options.window = 64;
  options.threads = 2;
  options.host_device = {.threads = 1, .delay_seed = seed, .max_delay_us = 200};
  return options;
}

class exactness : public testing::TestWithParam<std::tuple<split, std::uint32_t>> {};

TEST_P(exactness, prefill_in_chunks_then_decode) {
  const auto& [how, block_tokens] = GetParam();
  config options = make_config(how, block_tokens, 7);
  const auto engine_runtime = runtime::open(options);
  test::toy_engine engine(*engine_runtime, 1, 2e-5);
  engine.check_every(37);
  test::toy_sequence sequence;
  ASSERT_EQ(engine_runtime->create_sequence({.max_tokens = 1200}, &sequence.handle), status::ok);
  const std::uint32_t most = engine_runtime->max_step_tokens(1, 1200);
  ASSERT_GT(most, 0u);
  for (const std::uint32_t chunk : {1u, 63u, 200u, 7u, 300u, 400u, 100u}) {
    for (std::uint32_t done = 0; done < chunk;) {
      const std::uint32_t tokens = std::min(most, chunk - done);
      ASSERT_EQ(engine.run({{.target = &sequence, .tokens = tokens}}), status::ok);
      done += tokens;
    }
  }
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(engine.run({{.target = &sequence, .tokens = 1}}), status::ok);
  }
  EXPECT_EQ(sequence.handle.length(), 1091u);
  const runtime_stats stats = engine_runtime->stats();
  if (how.host_blocks_of_64 > 0) {
    EXPECT_GT(stats.rows.offloaded, 0u);
    EXPECT_EQ(stats.rows.offloaded, stats.rows.loaded);
  }
  if (how.disk) {
    EXPECT_GT(stats.disk_read_bytes, 0u);
  }
  EXPECT_LE(stats.device.peak_bytes, stats.device.cap_bytes);
  EXPECT_LE(stats.host.peak_bytes, stats.host.cap_bytes);
  EXPECT_LE(stats.disk.peak_bytes, stats.disk.cap_bytes);
}

INSTANTIATE_TEST_SUITE_P(splits, exactness,
                         testing::Combine(testing::Values(split{"device", 80, 0, false},
                                                          split{"device_host", 12, 64, false},
                                                          split{"three_tiers", 12, 12, true}),
                                          testing::Values(16u, 64u, 256u)),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param).name) + "_" +
                                  std::to_string(std::get<1>(tested.param));
                         });

}  // namespace
}  // namespace kvtier
