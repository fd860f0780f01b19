#include "lsh/simhash_planes.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cpu/element.hpp"
#include "lsh/counter_random.hpp"

namespace kvtier::lsh {
namespace {

/// Two normal numbers of one 64-bit random one (Box and Muller).
std::pair<float, float> normal_pair(std::uint64_t random) {
  constexpr float unit = 0x1p-32f;
  const float radius_part = (static_cast<float>(random >> 32) + 0.5f) * unit;
  const float turn = static_cast<float>(random & 0xffffffffu) * unit;
  const float radius = std::sqrt(-2.0f * std::log(radius_part));
  const float angle = 2.0f * std::numbers::pi_v<float> * turn;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

simhash_planes make_planes(const simhash_shape& shape, std::uint64_t state) {
  simhash_planes planes(shape.blocks() * shape.head_dim * plane_block);
  std::fill_n(planes.data(), planes.size(), std::uint16_t{0});
  for (std::size_t p = 0; p < shape.planes(); ++p) {
    std::uint16_t* const column =
        planes.data() + p / plane_block * shape.head_dim * plane_block + p % plane_block;
    for (std::uint32_t d = 0; d < shape.head_dim; d += 2) {
      const auto [even, odd] = normal_pair(mix64(state ^ (p * shape.head_dim + d)));
      column[d * plane_block] = bf16_from_float(even);
      column[(d + 1) * plane_block] = bf16_from_float(odd);
    }
  }
  return planes;
}

}  // namespace

simhash_plane_cache::entry& simhash_plane_cache::entry_of(
    std::pair<std::uint32_t, std::uint32_t> head) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<entry>& found = entries_[head];
  if (found == nullptr) {
    found = std::make_unique<entry>();
  }
  return *found;
}

const simhash_planes& simhash_plane_cache::of(std::uint32_t layer, std::uint32_t kv_head) {
  const std::pair head = shared_ ? std::pair{0u, 0u} : std::pair{layer, kv_head};
  entry& wanted = entry_of(head);
  std::call_once(wanted.made, [&] {
    const std::uint64_t place = std::uint64_t{head.first} << 32 | head.second;
    wanted.planes = make_planes(shape_, mix64(mix64(seed_) ^ place));
  });
  return wanted.planes;
}

}  // namespace kvtier::lsh
