#include "tests/storage/block_kit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "storage/block_file_on.hpp"
#include "storage/block_header.hpp"

namespace kvtier::storage::test {
namespace {

/// Drives one asynchronous call to its end.
template <typename Start> status run_to_end(backend_kit& kit, const Start& start) {
  struct ending {
    std::atomic<bool> reached = false;
    status outcome = status::ok;
  };
  const auto end = std::make_shared<ending>();
  const status taken = start([end](status outcome) {
    end->outcome = outcome;
    end->reached = true;
  });
  if (taken != status::ok) {
    return taken;
  }
  kit.run_until([&] { return end->reached.load(); });
  return end->outcome;
}

}  // namespace

block_file_options small_blocks(std::uint32_t slots) {
  constexpr std::size_t tiles = 8;
  block_file_options options;
  options.directory = testing::TempDir();
  options.payload_bytes = tiles * 4096;
  options.tile_bytes = 4096;
  options.capacity_bytes = slots * (options.payload_bytes + header_bytes(tiles));
  options.model_fingerprint = 0x1234;
  return options;
}

std::unique_ptr<block_file> make_block_file(backend_kit& kit, const block_file_options& options) {
  if (kit.simulated()) {
    const int fd = kit.make_file(options.capacity_bytes);
    return create_block_file_on({.fd = fd}, options, kit.io());
  }
  return block_file::create(options, kit.io());
}

memory_block::memory_block(const block_file& file, const block_file_options& options,
                           std::uint64_t seed)
    : bytes(file.slot_bytes()) {
  const std::vector<std::byte> content = pattern(file.slot_bytes(), seed);
  std::ranges::copy(content, bytes.span().begin());
  stored.key = seed;
  stored.checksums = checksum_tiles(bytes.span().first(options.payload_bytes), options.tile_bytes);
}

status store_now(backend_kit& kit, block_file& file, const memory_block& block) {
  return run_to_end(kit, [&](const block_file::store_callback& done) {
    return file.store(block.stored, block.bytes.span(), io_priority::write_back, done);
  });
}

status load_now(backend_kit& kit, block_file& file, const stored_block& block,
                std::span<std::byte> target) {
  return run_to_end(kit, [&](const block_file::load_callback& done) {
    return file.load(block, target, io_priority::demand, done);
  });
}

void put(backend_kit& kit, block_file& file, memory_block& block) {
  ASSERT_EQ(file.allocate(&block.stored.slot), status::ok);
  ASSERT_EQ(store_now(kit, file, block), status::ok);
}

bool all_bytes_are(std::span<const std::byte> bytes, std::byte value) {
  return std::ranges::all_of(bytes, [&](std::byte b) { return b == value; });
}

}  // namespace kvtier::storage::test
