/// Sizes of the hashes of one KV head, and where they lie in a tile's token index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// Hyperplanes are kept in blocks of so many: a vector register of fp32.
inline constexpr std::size_t plane_block = 16;

struct simhash_shape {
  std::uint32_t head_dim = 0;
  std::uint32_t bits = 0;    ///< K, of a code; 1 to 16
  std::uint32_t tables = 0;  ///< L, codes of a token

  std::size_t planes() const noexcept { return std::size_t{bits} * tables; }
  std::size_t blocks() const noexcept { return (planes() + plane_block - 1) / plane_block; }

  // The token index: u16 codes [tables][64], fp32 norms |k - c| [64], fp32 centre c [head_dim].
  std::size_t norms_at() const noexcept { return tables * tile_tokens * sizeof(std::uint16_t); }
  std::size_t centre_at() const noexcept { return norms_at() + tile_tokens * sizeof(float); }
  /// A multiple of 64, as all its parts are.
  std::size_t index_bytes() const noexcept { return centre_at() + head_dim * sizeof(float); }
};

/// The parts of a tile's token index.
class simhash_view {
 public:
  simhash_view(const simhash_shape& shape, const std::byte* index) noexcept
      : shape_(shape), index_(index) {}

  const std::uint16_t* codes() const noexcept {
    return reinterpret_cast<const std::uint16_t*>(index_);
  }
  const float* norms() const noexcept {
    return reinterpret_cast<const float*>(index_ + shape_.norms_at());
  }
  const float* centre() const noexcept {
    return reinterpret_cast<const float*>(index_ + shape_.centre_at());
  }

 private:
  simhash_shape shape_;
  const std::byte* index_;
};

}  // namespace kvtier::lsh
