#include "tests/lsh/random_selection.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lsh/sketch_format.hpp"
#include "tests/lsh/scattered_rows.hpp"

namespace kvtier::test {

random_selection::random_selection(const random_selection_options& options)
    : options_(options), random_(options.seed) {
  tiles.resize(options.row_tiles + options.whole_tiles);
  chosen.heads = options.heads;
  chosen.estimates = options.estimates;
  chosen.estimator = options.estimator;
  chosen.bits = options.bits;
  chosen.audits = options.audits;
  chosen.any_whole = options.whole_tiles > 0;
  draw_data();
  place_indexes();
  choose();
  estimate();
}

void random_selection::draw_data() {
  std::normal_distribution<float> normal;
  const std::size_t values = tokens() * options_.head_dim;
  for (std::size_t i = 0; i < values; ++i) {
    rows.keys.push_back(normal(random_));
    rows.values.push_back(options_.value_mean + normal(random_));
  }
  for (std::size_t i = 0; i < std::size_t{options_.heads} * options_.head_dim; ++i) {
    queries_.push_back(1.5f * normal(random_));
  }
  follow_logits();
  rows = rounded(rows, options_.element);
  query = {queries_.data(), options_.heads, options_.head_dim, nullptr, 0, 0, 0};
  for (std::uint32_t h = 0; h < options_.heads; ++h) {
    chosen.reference.push_back(0.0f);
    double top = 1e-300;
    for (std::size_t token = 0; token < tokens(); ++token) {
      top = std::max(top, weight(h, token));
    }
    chosen.reference.back() = static_cast<float>(std::rint(64.0 * std::log(top)) / 64.0);
  }
}

/// Only some coordinates, so that slopes have a direction.
void random_selection::follow_logits() {
  for (std::size_t token = 0; token < tokens(); ++token) {
    const std::size_t at = token * options_.head_dim;
    float dot = 0.0f;
    for (std::size_t d = 0; d < options_.head_dim; ++d) {
      dot += queries_[d] * rows.keys[at + d];
    }
    const float logit = dot / std::sqrt(static_cast<float>(options_.head_dim));
    for (std::size_t d = 0; d < options_.head_dim; d += 3) {
      rows.values[at + d] += options_.follow * logit;
    }
  }
}

double random_selection::weight(std::uint32_t head, std::size_t token) const {
  double dot = 0.0;
  for (std::size_t d = 0; d < options_.head_dim; ++d) {
    dot += double{queries_[head * options_.head_dim + d]} *
           double{rows.keys[token * options_.head_dim + d]};
  }
  return std::exp(dot / std::sqrt(static_cast<double>(options_.head_dim)) -
                  double{chosen.reference[head]});
}

/// Honest mean values, the rest of the index is poison.
void random_selection::place_indexes() {
  const lsh::sketch_format format{options_.head_dim, options_.bits};
  indexes_.assign(tiles.size() * format.bytes(), std::byte{0xff});
  for (std::size_t b = 0; b < tiles.size(); ++b) {
    std::byte* const at = indexes_.data() + b * format.bytes();
    const float unit = (1.0f + std::fabs(options_.value_mean)) / 127.0f;
    for (std::size_t d = 0; d < options_.head_dim; ++d) {
      float mean = 0.0f;
      for (std::size_t token = b * 64; token < b * 64 + 64; ++token) {
        mean += rows.values[token * options_.head_dim + d] / 64.0f;
      }
      const auto level =
          static_cast<std::int8_t>(std::clamp(std::rint(mean / unit), -127.f, 127.f));
      std::memcpy(at + format.value_at() + d, &level, 1);
    }
    const lsh::sketch_format::tail tail{0, 1.0f, unit};
    std::memcpy(at + format.tail_at(), &tail, sizeof tail);
    tiles[b].index = at;
    tiles[b].number = b;
    tiles[b].whole = b >= options_.row_tiles;
  }
}

std::uint32_t random_selection::draw_threshold() {
  std::uniform_real_distribution<double> uniform;
  if (uniform(random_) < options_.certain_share) {
    return lsh::certain;
  }
  return 1 + static_cast<std::uint32_t>(std::pow(uniform(random_), 2.0) * 60000.0 + 1000.0);
}

void random_selection::choose() {
  std::uniform_real_distribution<double> uniform;
  for (std::uint32_t token = 0; token < options_.row_tiles * 64; ++token) {
    if (uniform(random_) < options_.read_share) {
      chosen.rows.push_back(token);
      chosen.thresholds.push_back(draw_threshold());
    }
  }
  for (std::uint32_t i = 0; i < options_.read_tiles; ++i) {
    chosen.tiles.push_back(options_.row_tiles + i);
    chosen.tile_thresholds.push_back(draw_threshold());
  }
}

void random_selection::estimate() {
  if (!options_.estimates) {
    return;
  }
  const std::size_t heads = options_.heads;
  chosen.rises = options_.rises && options_.estimator == estimator_kind::shrink;
  for (lsh::unread_estimate* unread : {&chosen.row_unread, &chosen.whole_unread}) {
    unread->mass.assign(heads, 0.0);
    unread->num.assign(heads * options_.head_dim, 0.0);
    unread->rise.assign(chosen.rises ? heads : 0, 0.0);
  }
  chosen.whole_moments.assign(heads, 0.0);
  chosen.audit_moments.assign(heads, 0.0);
  chosen.row_weights.resize(chosen.rows.size() * heads);
  chosen.row_moments.resize(chosen.any_whole ? chosen.rows.size() * heads : 0);
  chosen.tile_weights.assign(chosen.tiles.size() * heads, 0.0f);
  chosen.tile_moments.assign(chosen.tiles.size() * heads, 0.0f);
  if (chosen.rises) {
    chosen.row_rises.resize(chosen.rows.size() * heads);
    chosen.tile_rises.assign(chosen.tiles.size() * heads, 0.0f);
    chosen.token_weights.resize(chosen.tiles.size() * heads * lsh::tile_tokens);
    chosen.token_rises.resize(chosen.token_weights.size());
  }
  for (std::uint32_t h = 0; h < heads; ++h) {
    estimate_head(h);
  }
}

void random_selection::estimate_head(std::uint32_t h) {
  const std::size_t heads = options_.heads;
  std::normal_distribution<double> normal;
  std::vector<double> guesses, means(tiles.size(), 0.0);
  for (std::size_t token = 0; token < tokens(); ++token) {
    guesses.push_back(weight(h, token) * std::exp(0.5 * normal(random_)));
    means[token / 64] += std::log(guesses.back()) / 64.0;
  }
  std::size_t next_row = 0;
  for (std::size_t token = 0; token < tokens(); ++token) {
    const std::size_t b = token / 64;
    const double guess = guesses[token];
    const double rise = std::log(guess) - means[b];
    const double moment = 1.3 * guess * guess;
    const auto tile = std::find(chosen.tiles.begin(), chosen.tiles.end(), b);
    if (next_row < chosen.rows.size() && chosen.rows[next_row] == token) {
      const std::size_t at = next_row * heads + h;
      chosen.row_weights[at] = static_cast<float>(guess);
      if (chosen.any_whole) {
        chosen.row_moments[at] = static_cast<float>(moment);
      }
      if (chosen.rises) {
        chosen.row_rises[at] = static_cast<float>(rise);
      }
      ++next_row;
    } else if (tile != chosen.tiles.end()) {
      const std::size_t at = static_cast<std::size_t>(tile - chosen.tiles.begin()) * heads + h;
      chosen.tile_weights[at] += static_cast<float>(guess);
      chosen.tile_moments[at] += static_cast<float>(moment);
      if (chosen.rises) {
        chosen.tile_rises[at] += static_cast<float>(guess * rise);
        chosen.token_weights[at * lsh::tile_tokens + token % 64] = static_cast<float>(guess);
        chosen.token_rises[at * lsh::tile_tokens + token % 64] = static_cast<float>(rise);
      }
    } else if (tiles[b].whole || options_.estimator == estimator_kind::shrink) {
      lsh::unread_estimate& to = tiles[b].whole ? chosen.whole_unread : chosen.row_unread;
      to.mass[h] += guess;
      if (chosen.rises) {
        to.rise[h] += guess * rise;
      }
      for (std::size_t d = 0; d < options_.head_dim; ++d) {
        to.num[h * options_.head_dim + d] +=
            guess * double{rows.values[token * options_.head_dim + d]};
      }
      chosen.whole_moments[h] += tiles[b].whole ? moment : 0.0;
      chosen.audit_moments[h] += tiles[b].whole && chosen.audits ? 3.0 * moment : 0.0;
    }
  }
}

}  // namespace kvtier::test
