#include "lsh/key_scores.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "lsh/dot.hpp"
#include "lsh/shared_work.hpp"

namespace kvtier::lsh {
namespace {

/// Logits beyond this count as it, so that no sum of exponentials is infinite or NaN.
constexpr float largest_logit = 1e30f;
constexpr float of_nan = -2.0f * largest_logit;

}  // namespace

double head_mass::log() const { return static_cast<double>(top) + std::log(sum); }

double window_log_mass(const selector_query& query, std::uint32_t g) {
  if (query.window_mass == nullptr || query.window_mass[g] == no_window_mass) {
    return -std::numeric_limits<double>::infinity();
  }
  return query.window_mass[g] / 64.0;
}

key_scores::key_scores(const char* selector, std::span<const tile_entry> tiles,
                       const selector_query& query)
    : tiles_(tiles),
      query_(query),
      selector_(selector),
      logits_(query.heads * tiles.size() * tile_tokens, of_nan),
      tops_(query.heads, tiles.empty() ? -std::numeric_limits<float>::infinity() : of_nan),
      key_(query.head_dim) {}

void key_scores::see(std::uint32_t position, const std::byte* const* rows, element_type element) {
  if (position >= tiles_.size()) {
    throw std::out_of_range(std::string(selector_) + ": tile " + std::to_string(position) + " of " +
                            std::to_string(tiles_.size()));
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(query_.head_dim));
  for (std::uint32_t token = 0; token < tile_tokens; ++token) {
    to_float(element, rows[token], key_.data(), key_.size());
    for (std::uint32_t g = 0; g < query_.heads; ++g) {
      const float product =
          scale * dot(query_.values + g * query_.head_dim, key_.data(), key_.size());
      const float logit =
          std::isnan(product) ? of_nan : std::clamp(product, -largest_logit, largest_logit);
      logits_[g * tokens() + position * tile_tokens + token] = logit;
      tops_[g] = std::max(tops_[g], logit);
    }
  }
}

std::vector<head_mass> key_scores::masses(cpu::task_arena* helpers) const {
  const std::size_t runs = shared_runs(tokens());
  std::vector<head_mass> all(heads());
  std::vector<double> sums(runs);
  for (std::uint32_t g = 0; g < heads(); ++g) {
    const float* const logit = logits(g);
    all[g].top = tops_[g];
    const auto top = static_cast<double>(all[g].top);
    share_tokens(tokens(), helpers, [&](std::size_t first, std::size_t last) {
      double sum = 0.0;
      for (std::size_t i = first; i < last; ++i) {
        sum += std::exp(static_cast<double>(logit[i]) - top);
      }
      sums[first / shared_run_tokens] = sum;
    });
    for (const double sum : sums) {
      all[g].sum += sum;
    }
  }
  return all;
}

}  // namespace kvtier::lsh
