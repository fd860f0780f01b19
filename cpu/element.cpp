#include "cpu/element.hpp"

#include <cstring>

namespace kvtier {

namespace {

constexpr std::uint32_t fp16_overflow_bits = 0x477ff000u;    // 65520: rounds to infinity
constexpr std::uint32_t fp16_min_normal_bits = 0x38800000u;  // 2^-14

template <class Raw, float (*Widen)(Raw)>
void widen(const void* from, float* to, std::size_t count) {
  const auto* bytes = static_cast<const std::byte*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    Raw raw;
    std::memcpy(&raw, bytes + i * sizeof(Raw), sizeof raw);
    to[i] = Widen(raw);
  }
}

template <class Raw, Raw (*Narrow)(float)>
void narrow(const float* from, void* to, std::size_t count) {
  auto* bytes = static_cast<std::byte*>(to);
  for (std::size_t i = 0; i < count; ++i) {
    const Raw raw = Narrow(from[i]);
    std::memcpy(bytes + i * sizeof(Raw), &raw, sizeof raw);
  }
}

}  // namespace

std::uint16_t fp16_from_float(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= fp16_overflow_bits) {
    return static_cast<std::uint16_t>(sign | 0x7c00u);
  }
  if (magnitude < fp16_min_normal_bits) {
    // Adding 1/2 lines the last fp16 bit up with the last fp32 bit, so that the addition rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

float float_from_fp16(std::uint16_t x) noexcept {
  // Without branches, so that loops over it vectorise: scaling by 2^112 moves the exponent's bias
  // and turns subnormals into normal numbers, exactly.
  const std::uint32_t magnitude = std::uint32_t{x & 0x7fffu} << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const bool finite = magnitude < 0x0f800000u;
  const std::uint32_t bits =
      finite ? std::bit_cast<std::uint32_t>(scaled) : magnitude | 0x7f800000u;
  return std::bit_cast<float>(bits | std::uint32_t{x & 0x8000u} << 16);
}

void to_float(element_type type, const void* from, float* to, std::size_t count) noexcept {
  switch (type) {
    case element_type::bf16:
      return widen<std::uint16_t, float_from_bf16>(from, to, count);
    case element_type::fp16:
      return widen<std::uint16_t, float_from_fp16>(from, to, count);
    case element_type::fp32:
      if (count > 0) {
        std::memcpy(to, from, count * sizeof(float));
      }
      return;
  }
}

void from_float(element_type type, const float* from, void* to, std::size_t count) noexcept {
  switch (type) {
    case element_type::bf16:
      return narrow<std::uint16_t, bf16_from_float>(from, to, count);
    case element_type::fp16:
      return narrow<std::uint16_t, fp16_from_float>(from, to, count);
    case element_type::fp32:
      if (count > 0) {
        std::memcpy(to, from, count * sizeof(float));
      }
      return;
  }
}

}  // namespace kvtier
