/// Block files over any backend, and blocks whose bytes are known.
#pragma once

#include <memory>
#include <string>

#include "storage/aligned_buffer.hpp"
#include "storage/block_file.hpp"
#include "tests/storage/backend_kit.hpp"

namespace kvtier::storage::test {

/// Eight tiles of 4 KiB; room for `slots` blocks.
block_file_options small_blocks(std::uint32_t slots);

/// A block file on `kit`: with a real file in the temporary directory, or one of the simulator's.
std::unique_ptr<block_file> make_block_file(backend_kit& kit, const block_file_options& options);

/// A block in memory: its bytes are a function of its seed; its key is the seed.
struct memory_block {
  memory_block(const block_file& file, const block_file_options& options, std::uint64_t seed);

  stored_block stored;  ///< slot not yet allocated
  aligned_buffer bytes;
};

/// The status that a store or load ended with, or that it was refused with.
status store_now(backend_kit& kit, block_file& file, const memory_block& block);
status load_now(backend_kit& kit, block_file& file, const stored_block& block,
                std::span<std::byte> target);

/// Allocates a slot for the block and stores it; fails the test if that does not work.
void put(backend_kit& kit, block_file& file, memory_block& block);

bool all_bytes_are(std::span<const std::byte> bytes, std::byte value);

}  // namespace kvtier::storage::test
