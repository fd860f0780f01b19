/// The bytes of one tile's token index: rotated codes of 64 keys against their mean, and the mean
/// value (sampler.md, sections 2.1-5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// Where the parts of an index lie, in this order, each at a multiple of 64 bytes:
/// - planes [bits][head_dim / 8][64] u8: bit j % 8 of byte j / 8 is coordinate j of a token;
///   tokens are vector lanes. Plane 0: the code is positive. Plane 1 (2 bits): s0 = +1, where
///   code = 2 s1 + s0, s = +-1.
/// - scales [64] u8: f = scale * tail.scale_unit, the length of a code's unit
/// - mean [head_dim] i8: rotated mean key / 2^tail.mean_exponent
/// - value [head_dim] i8: mean value / tail.value_unit
/// - tail
struct sketch_format {
  struct tail {
    std::int32_t mean_exponent;
    float scale_unit;
    float value_unit;
  };

  std::uint32_t head_dim;
  std::uint32_t bits;

  constexpr std::size_t plane_bytes() const noexcept { return std::size_t{head_dim} / 8 * 64; }
  constexpr std::size_t scales_at() const noexcept { return bits * plane_bytes(); }
  constexpr std::size_t mean_at() const noexcept { return scales_at() + tile_tokens; }
  constexpr std::size_t value_at() const noexcept { return mean_at() + head_dim; }
  constexpr std::size_t tail_at() const noexcept { return value_at() + head_dim; }
  /// A multiple of 64.
  constexpr std::size_t bytes() const noexcept { return (tail_at() + sizeof(tail) + 63) / 64 * 64; }
};

/// One tile's index, read.
class sketch_view {
 public:
  sketch_view(const sketch_format& format, const std::byte* index) noexcept
      : format_(format), index_(index) {
    std::memcpy(&tail_, index + format.tail_at(), sizeof tail_);
  }
  const std::uint8_t* planes() const noexcept { return bytes<std::uint8_t>(0); }
  const std::uint8_t* scales() const noexcept { return bytes<std::uint8_t>(format_.scales_at()); }
  const std::int8_t* mean() const noexcept { return bytes<std::int8_t>(format_.mean_at()); }
  const std::int8_t* value() const noexcept { return bytes<std::int8_t>(format_.value_at()); }
  std::int32_t mean_exponent() const noexcept { return tail_.mean_exponent; }
  float scale_unit() const noexcept { return tail_.scale_unit; }
  float value_unit() const noexcept { return tail_.value_unit; }

 private:
  template <class Byte> const Byte* bytes(std::size_t at) const noexcept {
    return reinterpret_cast<const Byte*>(index_ + at);
  }

  sketch_format format_;
  const std::byte* index_;
  sketch_format::tail tail_;
};

}  // namespace kvtier::lsh
