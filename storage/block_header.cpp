#include "storage/block_header.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "storage/aligned_buffer.hpp"

namespace kvtier::storage {
namespace {

static_assert(std::endian::native == std::endian::little,
              "headers are written as they lie in memory");

constexpr std::uint64_t magic = 0x4b'4c'42'52'45'49'54'4b;  // "KTIERBLK" in memory
constexpr std::uint32_t version = 1;

struct fixed_fields {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t slot;
  std::uint64_t generation;
  std::uint64_t key;
  std::uint64_t model_fingerprint;
  std::uint64_t payload_bytes;
  std::uint64_t tile_bytes;
  std::uint64_t tiles;
};
static_assert(sizeof(fixed_fields) == 64);

}  // namespace

std::size_t header_bytes(std::size_t tiles) noexcept {
  return round_up_to_alignment(sizeof(fixed_fields) + (tiles + 1) * sizeof(tile_checksum));
}

void write_header(const stored_block& block, const block_file_options& options,
                  std::span<std::byte> out) noexcept {
  const fixed_fields fields{magic,
                            version,
                            block.slot.number,
                            block.slot.generation,
                            block.key,
                            options.model_fingerprint,
                            options.payload_bytes,
                            options.tile_bytes,
                            block.checksums.size()};
  const std::size_t checksum_bytes = block.checksums.size() * sizeof(tile_checksum);
  std::fill(out.begin(), out.end(), std::byte{0});
  std::memcpy(out.data(), &fields, sizeof fields);
  std::memcpy(out.data() + sizeof fields, block.checksums.data(), checksum_bytes);
  const std::span<std::byte> hashed = out.first(out.size() - sizeof(tile_checksum));
  const tile_checksum own = checksum_tile(hashed);
  std::memcpy(out.data() + hashed.size(), &own, sizeof own);
}

}  // namespace kvtier::storage
