#include "storage/block_header.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace kvtier::storage {
namespace {

constexpr std::size_t tiles = 8;

stored_block example() {
  stored_block block{{5, 6}, 7, std::vector<tile_checksum>(tiles)};
  std::iota(block.checksums.begin(), block.checksums.end(), 100U);
  return block;
}

const block_file_options options{
    .payload_bytes = 32768, .tile_bytes = 4096, .model_fingerprint = 8};

std::vector<std::byte> encoded(const stored_block& block, const block_file_options& with) {
  std::vector<std::byte> bytes(header_bytes(block.checksums.size()));
  write_header(block, with, bytes);
  return bytes;
}

std::uint64_t word(const std::vector<std::byte>& bytes, std::size_t offset) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

TEST(block_header, takes_whole_pages_and_holds_every_checksum) {
  EXPECT_EQ(header_bytes(1), 4096U);
  EXPECT_EQ(header_bytes(503), 4096U);
  EXPECT_EQ(header_bytes(504), 8192U);
}

TEST(block_header, lies_on_disk_as_documented) {
  const auto bytes = encoded(example(), options);
  EXPECT_EQ(std::memcmp(bytes.data(), "KTIERBLK", 8), 0);
  EXPECT_EQ(word(bytes, 8), 1U | (std::uint64_t{5} << 32));
  EXPECT_EQ(word(bytes, 16), 6U);
  EXPECT_EQ(word(bytes, 24), 7U);
  EXPECT_EQ(word(bytes, 32), 8U);
  EXPECT_EQ(word(bytes, 40), 32768U);
  EXPECT_EQ(word(bytes, 48), 4096U);
  EXPECT_EQ(word(bytes, 56), tiles);
  for (std::size_t i = 0; i < tiles; ++i) {
    EXPECT_EQ(word(bytes, 64 + 8 * i), 100 + i);
  }
  EXPECT_EQ(word(bytes, 4088), checksum_tile(std::span(bytes).first(4088)));
}

TEST(block_header, differs_wherever_a_block_or_the_model_differs) {
  const auto original = encoded(example(), options);
  auto changed_block = [&](auto change) {
    stored_block block = example();
    change(block);
    return encoded(block, options);
  };
  EXPECT_EQ(original, encoded(example(), options));
  EXPECT_NE(original, changed_block([](stored_block& b) { ++b.slot.number; }));
  EXPECT_NE(original, changed_block([](stored_block& b) { ++b.slot.generation; }));
  EXPECT_NE(original, changed_block([](stored_block& b) { ++b.key; }));
  EXPECT_NE(original, changed_block([](stored_block& b) { ++b.checksums.back(); }));
  block_file_options other_model = options;
  ++other_model.model_fingerprint;
  EXPECT_NE(original, encoded(example(), other_model));
}

TEST(tile_checksum, is_xxh3_and_cuts_the_last_tile_short) {
  // XXH3-64 of the empty input with seed 0, as its specification publishes it.
  EXPECT_EQ(checksum_tile({}), 0x2D06800538D394C2U);
  std::vector<std::byte> bytes(10'000);
  bytes[9'999] = std::byte{3};
  const auto sums = checksum_tiles(bytes, 4096);
  ASSERT_EQ(sums.size(), 3U);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[2], checksum_tile(std::span(bytes).subspan(8192)));
  EXPECT_THROW(checksum_tiles(bytes, 0), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::storage
