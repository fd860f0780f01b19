#include "lsh/topk_selector.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "lsh/selector_checks.hpp"

namespace kvtier::lsh {
namespace {

constexpr std::size_t lanes = 16;

/// In a fixed order, so that every machine ranks alike.
float dot(const float* a, const float* b, std::size_t count) {
  std::array<float, lanes> sums{};
  for (std::size_t i = 0; i < count; i += lanes) {
    for (std::size_t j = 0; j < lanes; ++j) {
      sums[j] += a[i + j] * b[i + j];
    }
  }
  for (std::size_t half = lanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) {
      sums[j] += sums[j + half];
    }
  }
  return sums[0];
}

/// Logits beyond this rank as it, so that no sum of exponentials is infinite or NaN.
constexpr float largest_logit = 1e30f;

float bounded(float logit) { return std::clamp(logit, -largest_logit, largest_logit); }

struct ranked_token {
  float weight;  ///< natural log
  std::uint32_t place;

  /// The order of a heap whose top is to be taken next.
  friend bool operator<(const ranked_token& a, const ranked_token& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.place > b.place;
  }
};

class topk_selection final : public query_selection {
 public:
  topk_selection(std::uint32_t budget_ppm, std::span<const tile_entry> tiles,
                 const selector_query& query)
      : budget_ppm_(budget_ppm),
        tiles_(tiles),
        query_(query),
        logits_(query.heads * tiles.size() * tile_tokens, least),
        keys_(query.head_dim) {}

  void see(std::uint32_t position, const std::byte* const* rows, element_type element) override {
    if (position >= tiles_.size()) {
      throw std::out_of_range("topk: tile " + std::to_string(position) + " of " +
                              std::to_string(tiles_.size()));
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(query_.head_dim));
    for (std::uint32_t token = 0; token < tile_tokens; ++token) {
      to_float(element, rows[token], keys_.data(), keys_.size());
      for (std::uint32_t g = 0; g < query_.heads; ++g) {
        const float logit =
            scale * dot(query_.values + g * query_.head_dim, keys_.data(), keys_.size());
        head(g)[position * tile_tokens + token] = std::isnan(logit) ? least : bounded(logit);
      }
    }
  }

  selection choose(cpu::task_arena*) override {
    selection chosen;
    chosen.heads = query_.heads;
    for (std::uint32_t g = 0; g < query_.heads; ++g) {
      const float* logits = head(g);
      const std::size_t tokens = tiles_.size() * tile_tokens;
      chosen.reference.push_back(tokens == 0 ? -std::numeric_limits<float>::infinity()
                                             : *std::max_element(logits, logits + tokens));
    }
    std::vector<ranked_token> heap = ranked();
    std::vector<bool> whole_taken(tiles_.size(), false);
    std::uint64_t left = budget();
    bool any = false;
    while (!heap.empty() && left > 0) {
      std::pop_heap(heap.begin(), heap.end());
      const std::uint32_t place = heap.back().place;
      heap.pop_back();
      const std::uint32_t tile = place / tile_tokens;
      if (whole_taken[tile]) {
        continue;
      }
      const std::uint64_t cost = tiles_[tile].whole ? tile_tokens : 1;
      if (cost > left && any) {
        break;
      }
      any = true;
      left -= std::min(cost, left);
      whole_taken[tile] = tiles_[tile].whole;
      (tiles_[tile].whole ? chosen.tiles : chosen.rows)
          .push_back(tiles_[tile].whole ? tile : place);
    }
    std::sort(chosen.rows.begin(), chosen.rows.end());
    std::sort(chosen.tiles.begin(), chosen.tiles.end());
    chosen.thresholds.assign(chosen.rows.size(), certain);
    chosen.tile_thresholds.assign(chosen.tiles.size(), certain);
    return chosen;
  }

 private:
  static constexpr float least = -2.0f * largest_logit;  // of NaN: behind all others

  float* head(std::uint32_t g) { return logits_.data() + g * tiles_.size() * tile_tokens; }

  std::uint64_t budget() const {
    const std::uint64_t tokens = std::uint64_t{tile_tokens} * tiles_.size();
    return std::max<std::uint64_t>(1, (budget_ppm_ * tokens + 500'000) / 1'000'000);
  }

  /// All tokens as a heap, by log weight.
  std::vector<ranked_token> ranked() {
    const std::size_t tokens = tiles_.size() * tile_tokens;
    std::vector<ranked_token> ranks(tokens);
    for (std::size_t i = 0; i < tokens; ++i) {
      ranks[i] = {-std::numeric_limits<float>::infinity(), static_cast<std::uint32_t>(i)};
    }
    for (std::uint32_t g = 0; g < query_.heads && tokens > 0; ++g) {
      const float* logits = head(g);
      const double top = static_cast<double>(*std::max_element(logits, logits + tokens));
      double mass = 0.0;
      for (std::size_t i = 0; i < tokens; ++i) {
        mass += std::exp(static_cast<double>(logits[i]) - top);
      }
      const auto log_mass = static_cast<float>(top + std::log(mass));
      for (std::size_t i = 0; i < tokens; ++i) {
        ranks[i].weight = std::max(ranks[i].weight, logits[i] - log_mass);
      }
    }
    std::make_heap(ranks.begin(), ranks.end());
    return ranks;
  }

  std::uint32_t budget_ppm_;
  std::span<const tile_entry> tiles_;
  selector_query query_;
  std::vector<float> logits_;  // [heads][tiles][64]
  std::vector<float> keys_;    // one row's
};

std::uint32_t checked_dim(const selector_config& options, std::uint32_t head_dim) {
  check_selector(options, head_dim);
  return head_dim;
}

}  // namespace

topk_selector::topk_selector(const selector_config& options, std::uint32_t head_dim)
    : budget_ppm_(options.budget_ppm), head_dim_(checked_dim(options, head_dim)) {}

void topk_selector::index_tile(const tile_content&, std::byte*) const {}

std::unique_ptr<query_selection> topk_selector::begin(std::span<const tile_entry> tiles,
                                                      const selector_query& query) const {
  check_query(query, head_dim_);
  return std::make_unique<topk_selection>(budget_ppm_, tiles, query);
}

}  // namespace kvtier::lsh
