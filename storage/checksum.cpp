#include <xxhash.h>

#include <algorithm>
#include <stdexcept>

#include "storage/block_file.hpp"

namespace kvtier::storage {

tile_checksum checksum_tile(std::span<const std::byte> tile) noexcept {
  return XXH3_64bits(tile.data(), tile.size());
}

std::vector<tile_checksum> checksum_tiles(std::span<const std::byte> payload,
                                          std::size_t tile_bytes) {
  if (tile_bytes == 0) {
    throw std::invalid_argument("checksum_tiles: tile_bytes must be at least 1, got 0");
  }
  std::vector<tile_checksum> checksums;
  checksums.reserve((payload.size() + tile_bytes - 1) / tile_bytes);
  while (!payload.empty()) {
    const std::size_t length = std::min(tile_bytes, payload.size());
    checksums.push_back(checksum_tile(payload.first(length)));
    payload = payload.subspan(length);
  }
  return checksums;
}

}  // namespace kvtier::storage
