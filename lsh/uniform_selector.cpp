#include "lsh/uniform_selector.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "cpu/element.hpp"
#include "lsh/logit_range.hpp"
#include "lsh/poisson_draw.hpp"
#include "lsh/selector_checks.hpp"

namespace kvtier::lsh {
namespace {

/// One tile's index, read.
struct key_ball {
  key_ball(const std::byte* index, std::uint32_t head_dim) : mean(head_dim) {
    to_float(element_type::bf16, index, mean.data(), head_dim);
    std::memcpy(&radius, index + head_dim * element_bytes(element_type::bf16), sizeof radius);
  }

  std::vector<float> mean;
  float radius = 0.0f;
};

float length(const float* values, std::uint32_t count) {
  float sum = 0.0f;
  for (std::uint32_t d = 0; d < count; ++d) {
    sum += values[d] * values[d];
  }
  return std::sqrt(sum);
}

class uniform_selection final : public query_selection {
 public:
  uniform_selection(std::uint32_t threshold, std::uint64_t seed, std::span<const tile_entry> tiles,
                    const selector_query& query)
      : threshold_(threshold), seed_(seed), tiles_(tiles), query_(query) {}

  void see(std::uint32_t, const std::byte* const*, element_type) override {
    throw std::logic_error("the uniform selector reads no keys: do not call see");
  }

  selection choose(cpu::task_arena*) override {
    selection chosen;
    chosen.heads = query_.heads;
    chosen.reference = references();
    const std::vector<std::uint32_t> thresholds(tiles_.size() * tile_tokens, threshold_);
    draw_poisson(numbers_of(seed_, query_), tiles_, thresholds, chosen);
    return chosen;
  }

 private:
  std::vector<float> references() const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(query_.head_dim));
    std::vector<logit_range> ranges(query_.heads);
    std::vector<float> lengths, all;
    lengths.reserve(query_.heads);
    all.reserve(query_.heads);
    for (std::uint32_t g = 0; g < query_.heads; ++g) {
      lengths.push_back(length(query_.values + g * query_.head_dim, query_.head_dim));
    }
    for (const tile_entry& tile : tiles_) {
      const key_ball ball(tile.index, query_.head_dim);
      for (std::uint32_t g = 0; g < query_.heads; ++g) {
        const float* const query = query_.values + g * query_.head_dim;
        float centre = 0.0f;
        for (std::uint32_t d = 0; d < query_.head_dim; ++d) {
          centre += query[d] * ball.mean[d];
        }
        ranges[g].widen(scale * centre, scale * (centre + lengths[g] * ball.radius));
      }
    }
    for (const logit_range& range : ranges) {
      all.push_back(tiles_.empty() ? -std::numeric_limits<float>::infinity() : range.reference());
    }
    return all;
  }

  std::uint32_t threshold_;
  std::uint64_t seed_;
  std::span<const tile_entry> tiles_;
  selector_query query_;
};

std::uint32_t threshold_of(std::uint32_t budget_ppm) {
  return static_cast<std::uint32_t>(
      std::max<std::uint64_t>(1, (std::uint64_t{certain} * budget_ppm + 500'000) / 1'000'000));
}

}  // namespace

uniform_selector::uniform_selector(const selector_config& options, std::uint32_t head_dim,
                                   std::uint64_t seed)
    : threshold_(threshold_of(options.budget_ppm)),
      head_dim_(checked_head_dim(options, head_dim)),
      seed_(seed) {}

std::size_t uniform_selector::index_bytes(std::uint32_t, std::uint32_t) const {
  const std::size_t used = head_dim_ * element_bytes(element_type::bf16) + sizeof(float);
  return (used + 63) / 64 * 64;
}

void uniform_selector::index_tile(const tile_content& tile, std::byte* index) const {
  const std::vector<float> mean =
      mean_of_keys({tile.keys, std::size_t{tile_tokens} * head_dim_}, head_dim_);
  std::memset(index, 0, index_bytes(tile.layer, tile.kv_head));
  from_float(element_type::bf16, mean.data(), index, head_dim_);
  const key_ball stored(index, head_dim_);
  float radius = 0.0f;
  std::vector<float> distance(head_dim_);
  for (std::uint32_t token = 0; token < tile_tokens; ++token) {
    std::transform(stored.mean.begin(), stored.mean.end(),
                   tile.keys + std::size_t{token} * head_dim_, distance.begin(),
                   [](float centre, float key) { return key - centre; });
    radius = std::max(radius, length(distance.data(), head_dim_));
  }
  std::memcpy(index + head_dim_ * element_bytes(element_type::bf16), &radius, sizeof radius);
}

std::unique_ptr<query_selection> uniform_selector::begin(std::span<const tile_entry> tiles,
                                                         const selector_query& query) const {
  check_query(query, head_dim_);
  return std::make_unique<uniform_selection>(threshold_, seed_, tiles, query);
}

}  // namespace kvtier::lsh
