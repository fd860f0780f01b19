/// Element types of K, V and activations, and their exact conversion to and from fp32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvtier {

enum class element_type : std::uint8_t {
  bf16,  ///< 8 exponent bits, 8 bits of precision
  fp16,  ///< IEEE binary16
  fp32,  ///< IEEE binary32
};

constexpr std::size_t element_bytes(element_type type) noexcept {
  return type == element_type::fp32 ? 4 : 2;
}

constexpr std::string_view to_string(element_type type) noexcept {
  switch (type) {
    case element_type::bf16:
      return "bf16";
    case element_type::fp16:
      return "fp16";
    case element_type::fp32:
      return "fp32";
  }
  return "?";
}

/// Round to nearest even; a NaN stays a (quiet) NaN.
constexpr std::uint16_t bf16_from_float(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float float_from_bf16(std::uint16_t x) noexcept {
  return std::bit_cast<float>(std::uint32_t{x} << 16);
}

/// Round to nearest even, subnormals kept, overflow to infinity.
std::uint16_t fp16_from_float(float x) noexcept;
float float_from_fp16(std::uint16_t x) noexcept;

/// Converts `count` elements of `type` at `from` (any alignment) to fp32. Exact.
void to_float(element_type type, const void* from, float* to, std::size_t count) noexcept;

/// Converts `count` fp32 values to `type` (any alignment), rounding to nearest even.
void from_float(element_type type, const float* from, void* to, std::size_t count) noexcept;

}  // namespace kvtier
