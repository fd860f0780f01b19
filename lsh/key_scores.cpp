#include "lsh/key_scores.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace kvtier::lsh {
namespace {

constexpr std::size_t lanes = 16;
constexpr std::size_t run_tokens = 4096;
/// Logits beyond this count as it, so that no sum of exponentials is infinite or NaN.
constexpr float largest_logit = 1e30f;
constexpr float of_nan = -2.0f * largest_logit;

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

std::size_t runs_of(std::size_t tokens) { return (tokens + run_tokens - 1) / run_tokens; }

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
  const std::size_t runs = runs_of(tokens());
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
      sums[first / run_tokens] = sum;
    });
    for (const double sum : sums) {
      all[g].sum += sum;
    }
  }
  return all;
}

void share_work(std::size_t count, cpu::task_arena* helpers,
                const std::function<void(std::size_t)>& body) {
  if (helpers != nullptr && count > 1) {
    helpers->parallel_for(count, body);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    body(i);
  }
}

void share_tokens(std::size_t count, cpu::task_arena* helpers,
                  const std::function<void(std::size_t first, std::size_t last)>& body) {
  share_work(runs_of(count), helpers, [&](std::size_t run) {
    body(run * run_tokens, std::min(count, (run + 1) * run_tokens));
  });
}

}  // namespace kvtier::lsh
