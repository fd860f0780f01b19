/// Random numbers that are a pure function of where a token lies (sampler.md, section 10.3).
#pragma once

#include <cstdint>

namespace kvtier::lsh {

/// Spreads consecutive counters over 32 bits: 2^32 over the golden ratio.
inline constexpr std::uint32_t counter_step = 0x9E3779B1u;

/// MurmurHash3's 32-bit finaliser.
constexpr std::uint32_t mix32(std::uint32_t x) noexcept {
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  return x ^ (x >> 16);
}

/// One step of splitmix64 from state x.
constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// The 16-bit random numbers of one tile: one per token, and one for the tile as a whole.
class tile_numbers {
 public:
  constexpr explicit tile_numbers(std::uint64_t state) noexcept : state_(state) {}
  constexpr std::uint32_t seed() const noexcept { return static_cast<std::uint32_t>(state_ >> 32); }
  constexpr std::uint16_t of_token(std::uint32_t token) const noexcept {
    return static_cast<std::uint16_t>(mix32(seed() + token * counter_step) >> 16);
  }
  constexpr std::uint16_t of_tile() const noexcept { return static_cast<std::uint16_t>(state_); }

 private:
  std::uint64_t state_;
};

/// The numbers of one KV head of one layer at one step. They stay for 2^log2_period steps, and so
/// small a part of the tiles is drawn anew at each step.
class counter_random {
 public:
  constexpr counter_random(std::uint64_t seed, std::uint32_t layer, std::uint32_t kv_head,
                           std::uint64_t step, std::uint32_t log2_period) noexcept
      : seed_(mix64(seed)),
        head_(std::uint64_t{layer} << 32 | kv_head),
        step_(step),
        log2_period_(log2_period) {}

  /// What all tiles share that `sequence` sealed (a fork shares its parent's tiles).
  constexpr std::uint64_t sequence_state(std::uint64_t sequence) const noexcept {
    return mix64(mix64(seed_ ^ sequence) ^ head_);
  }
  /// The tile `number` (absolute token index / 64) of a sequence.
  constexpr tile_numbers of(std::uint64_t sequence_state, std::uint64_t number) const noexcept {
    const std::uint64_t tile = mix64(sequence_state ^ number);
    const std::uint64_t phase = (tile >> 32) & ((std::uint64_t{1} << log2_period_) - 1);
    const std::uint64_t epoch = (step_ + phase) >> log2_period_;
    return tile_numbers(mix64(tile ^ epoch));
  }

 private:
  std::uint64_t seed_;
  std::uint64_t head_;
  std::uint64_t step_;
  std::uint32_t log2_period_;
};

}  // namespace kvtier::lsh
