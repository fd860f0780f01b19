/// The header that lies on disk beside every slot's payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "storage/block_file.hpp"

namespace kvtier::storage {

/// Bytes of a header for that many tiles: a multiple of 4096.
std::size_t header_bytes(std::size_t tiles) noexcept;

/// Fills all of `out`, header_bytes(block.checksums.size()) long, with the header of `block`. Equal
/// blocks and options give equal bytes, so a header is verified by comparing it with the one
/// expected.
///
/// Little-endian: magic u64, version u32, slot u32, generation u64, key u64, model fingerprint u64,
/// payload bytes u64, tile bytes u64, tiles u64, their XXH3-64 each u64, zeros; the last 8 bytes
/// are the XXH3-64 of all before.
void write_header(const stored_block& block, const block_file_options& options,
                  std::span<std::byte> out) noexcept;

}  // namespace kvtier::storage
