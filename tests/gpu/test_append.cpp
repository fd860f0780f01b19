// Appending writes exactly the rows it was told to, from the heads it was told to.
#include <cstring>
#include <random>

#include "tests/gpu/device_test.hpp"

namespace kvtier::test {
namespace {

struct append_case {
  gpu::attention_shape shape;
  gpu::head_slice slice;
  std::uint32_t tokens = 0;
  std::uint32_t blocks = 0;
  std::vector<gpu::append_range> ranges;  ///< block: an index, as a pointer from null
};

/// Tokens go to consecutive rows from a random row on, over shuffled blocks; a few tokens are left
/// out.
append_case draw(std::uint64_t seed, element_type element, std::uint32_t block_tokens) {
  std::mt19937_64 random(seed);
  const auto upto = [&random](std::uint32_t most) {
    return static_cast<std::uint32_t>(random() % (most + 1));
  };
  append_case made;
  made.shape = {element, upto(1) == 0 ? 64u : 128u, 1 + upto(3), 1, block_tokens};
  made.slice.kv_head_first = upto(2);
  made.slice.kv_heads_total = made.slice.kv_head_first + made.shape.kv_heads + upto(2);
  made.tokens = 1 + upto(3 * block_tokens);
  made.blocks = 8;
  std::uint32_t token = upto(std::min(3u, made.tokens - 1));
  std::uint32_t row = upto(block_tokens - 1);
  for (std::uint32_t block = 0; token < made.tokens; ++block, row = 0) {
    const std::uint32_t count = std::min(made.tokens - token, block_tokens - row);
    // 5 and 8 have no common factor: every block once.
    const std::uintptr_t slot = (block * 5 + seed) % made.blocks;
    made.ranges.push_back({reinterpret_cast<std::byte*>(slot), row, token, count});
    token += count;
  }
  return made;
}

std::vector<std::byte> expected_pool(const append_case& what, std::vector<std::byte> pool,
                                     const std::vector<std::byte>& k,
                                     const std::vector<std::byte>& v) {
  const std::size_t half = what.shape.row_bytes() / 2;
  for (const gpu::append_range& range : what.ranges) {
    for (std::uint32_t head = 0; head < what.shape.kv_heads; ++head) {
      for (std::uint32_t i = 0; i < range.count; ++i) {
        const std::size_t from = (std::size_t{range.first_token + i} * what.slice.kv_heads_total +
                                  what.slice.kv_head_first + head) *
                                 half;
        const std::size_t to =
            reinterpret_cast<std::size_t>(range.block) * what.shape.block_bytes() +
            (head * what.shape.block_tokens + range.first_row + i) * 2 * half;
        std::memcpy(pool.data() + to, k.data() + from, half);
        std::memcpy(pool.data() + to + half, v.data() + from, half);
      }
    }
  }
  return pool;
}

void expect_right(gpu::device& device, const append_case& what, std::uint64_t seed) {
  const auto stream = device.make_stream("compute");
  const std::size_t bytes = what.tokens * what.slice.kv_heads_total * what.shape.row_bytes() / 2;
  const std::vector<std::byte> k = pattern(bytes, seed + 1);
  const std::vector<std::byte> v = pattern(bytes, seed + 2);
  const std::vector<std::byte> before = pattern(what.blocks * what.shape.block_bytes(), seed + 3);
  const device_array<std::byte> device_k(device, *stream, k);
  const device_array<std::byte> device_v(device, *stream, v);
  const device_array<std::byte> pool(device, *stream, before, gpu::memory_use::kv);
  std::vector<gpu::append_range> placed = what.ranges;
  for (gpu::append_range& range : placed) {
    range.block =
        pool.data() + reinterpret_cast<std::size_t>(range.block) * what.shape.block_bytes();
  }
  device.append({what.shape, what.slice, device_k.data(), device_v.data(), placed}, *stream);
  EXPECT_EQ(pool.download(), expected_pool(what, before, k, v));
}

TEST_P(device_test, appends_rows_of_every_block_size) {
  const auto device = open();
  std::uint64_t seed = 10;
  for (const std::uint32_t block_tokens : {16u, 64u, 256u}) {
    for (const element_type element :
         {element_type::bf16, element_type::fp16, element_type::fp32}) {
      ++seed;
      SCOPED_TRACE("seed " + std::to_string(seed));
      expect_right(*device, draw(seed, element, block_tokens), seed);
    }
  }
}

TEST_P(device_test, appending_nothing_writes_nothing) {
  const auto device = open();
  append_case what = draw(1, element_type::bf16, 16);
  what.ranges.resize(1);
  what.ranges[0].count = 0;
  expect_right(*device, what, 1);
  what.ranges.clear();
  expect_right(*device, what, 1);
}

}  // namespace
}  // namespace kvtier::test
