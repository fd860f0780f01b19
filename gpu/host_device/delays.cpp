#include "gpu/host_device/delays.hpp"

namespace kvtier::gpu {
namespace {

std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  return x;
}

}  // namespace

operation_delay delay_of(std::uint64_t seed, std::string_view stream, std::uint64_t index,
                         std::uint32_t max_delay_us) noexcept {
  if (max_delay_us == 0) {
    return {};
  }
  std::uint64_t hash = mix(seed + 0x9e3779b97f4a7c15u);
  for (const char c : stream) {
    hash = mix(hash ^ static_cast<unsigned char>(c));
  }
  hash = mix(hash ^ index);
  const std::uint64_t least = max_delay_us / 4;
  const std::uint64_t whole = least + hash % (max_delay_us - least + 1);
  const std::uint64_t before = whole / 8;
  return {std::chrono::microseconds(before), std::chrono::microseconds(whole - before)};
}

}  // namespace kvtier::gpu
