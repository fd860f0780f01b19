#include "lsh/sketch_plan.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvtier::lsh {
namespace {

constexpr std::uint32_t million = 1'000'000;

/// 2^(level / 32 - 24)
double growth(int level) {
  return std::ldexp(exp2_32nds[static_cast<std::size_t>(level) % 32], level / 32 - 24);
}

/// The largest level at which `value` is at most `target`, or 0. `value` must not fall with the
/// level. It grows like `growth` where nothing is cut off, which makes a few steps enough; after
/// some that were not, the bracket is halved.
template <class Value> int largest_level(const Value& value, std::uint64_t target, int guess) {
  int low = 0;
  int high = last_level;
  for (int step = 0; low < high; ++step) {
    const int level = step > 5 ? (low + high + 1) / 2 : std::clamp(guess, low + 1, high);
    const std::uint64_t found = value(level);
    if (found <= target) {
      low = level;
    } else {
      high = level - 1;
    }
    const double ratio = (static_cast<double>(target) + 1) / (static_cast<double>(found) + 1);
    guess = level + static_cast<int>(std::floor(32.0 * std::log2(ratio)));
  }
  return low;
}

/// Sum of all heads' weights in a head's own units, the exact window included.
double total_mass(const score_summary& scores, std::uint32_t g, std::int16_t window_mass) {
  double mass = 0.0;
  for (std::size_t bin = 0; bin < score_bins; ++bin) {
    const std::uint64_t tokens = std::uint64_t{scores.rows[g][bin]} + scores.wholes[g][bin];
    mass = mass + static_cast<double>(tokens) * exp_bin[bin];
  }
  const int below = (scores.top[g] - window_mass) >> 4;
  const int above = (window_mass - scores.top[g]) >> 4;
  return mass + exp_bin[static_cast<std::size_t>(std::clamp(below, 0, 127))] /
                    exp_bin[static_cast<std::size_t>(std::clamp(above, 0, 127))];
}

const std::array<double, score_bins>& selection_weights(const selector_config& options) {
  return options.estimator == estimator_kind::ht ? exp_bin : exp_bin_sharp;
}

/// The level at which one head alone reads `rows` rows.
int level_of_head(const bin_counts& counts, const std::array<double, score_bins>& weights,
                  std::uint64_t rows) {
  const auto drawn = [&](int level) {
    const double factor = growth(level);
    std::uint64_t sum = 0;
    for (std::size_t bin = 0; bin < score_bins; ++bin) {
      const double threshold = std::floor(65536.0 * weights[bin] * factor);
      sum += counts[bin] * static_cast<std::uint64_t>(std::min(threshold, double{certain}));
    }
    return sum;
  };
  return largest_level(drawn, rows, last_level / 2);
}

/// Limits of all heads at one level; `least` is the floor of the thresholds.
void set_limits(sketch_plan& plan, std::uint32_t heads, int level,
                const std::array<double, score_bins>& weights, std::uint64_t least) {
  const double factor = growth(level);
  for (std::uint32_t g = 0; g < heads; ++g) {
    for (std::size_t bin = 0; bin < score_bins; ++bin) {
      const double threshold = std::floor(65536.0 * (plan.share[g] * weights[bin]) * factor) +
                               static_cast<double>(least);
      const bool all = level == last_level || threshold >= double{certain};
      plan.limits[g].set(bin,
                         all ? std::uint16_t{65535} : static_cast<std::uint16_t>(threshold - 1.0));
    }
  }
}

/// The floor of all thresholds: it bounds weights at 50 M / m.
std::uint64_t least_threshold(std::uint64_t rows, std::uint64_t row_tiles) {
  return std::max<std::uint64_t>(1, 65536 * rows / (50 * tile_tokens * row_tiles));
}

/// 32nds of an octave that a factor of at least 1 is worth.
int steps_of(double factor) {
  constexpr double most = 1024.0;
  return static_cast<int>(std::ceil(32.0 * std::log2(std::clamp(factor, 1.0, most))));
}

}  // namespace

sketch_budget budget_of(std::uint32_t ppm, std::uint64_t row_tiles, std::uint64_t whole_tiles) {
  const auto part = [ppm](std::uint64_t of) { return (ppm * of + million / 2) / million; };
  sketch_budget budget;
  if (whole_tiles > 0) {
    budget.tiles = std::min(whole_tiles, std::max<std::uint64_t>(1, part(whole_tiles)));
  }
  if (row_tiles > 0) {
    const std::uint64_t all = part(tile_tokens * (row_tiles + whole_tiles));
    const std::uint64_t in_tiles = tile_tokens * budget.tiles;
    const std::uint64_t left = all > in_tiles ? all - in_tiles : 0;
    const std::uint64_t least = ppm * tile_tokens * row_tiles / (2 * million);
    budget.rows =
        std::min<std::uint64_t>(tile_tokens * row_tiles, std::max({left, least, std::uint64_t{1}}));
  }
  return budget;
}

sketch_plan plan_rows(const score_summary& scores, const std::int16_t* window_mass,
                      const selector_config& options, std::uint64_t calibration_tiles,
                      const limit_sum& sum) {
  sketch_plan plan;
  plan.budget = budget_of(options.budget_ppm, scores.row_tiles, scores.whole_tiles);
  for (std::uint32_t g = 0; g < scores.heads; ++g) {
    plan.mass[g] = total_mass(scores, g, window_mass[g]);
    plan.share[g] = 1.0;
  }
  if (scores.row_tiles == 0) {
    return plan;
  }
  if (options.epsilon_ppm > 0) {
    const std::uint64_t cap = options.cap_ppm * tile_tokens * scores.row_tiles / million;
    plan.budget.rows = std::max(plan.budget.rows, std::min(least_adaptive_rows, cap));
  }
  const auto& weights = selection_weights(options);
  const std::uint64_t rows = plan.budget.rows;
  int guess = 0;
  for (std::uint32_t g = 0; g < scores.heads; ++g) {
    const int level = level_of_head(scores.rows[g], weights, 65536 * rows / scores.heads);
    const double mass = plan.mass[g];
    const double sharp =
        options.estimator == estimator_kind::ht ? mass : mass * std::sqrt(std::sqrt(mass));
    plan.share[g] = std::sqrt(growth(level) / sharp);
    guess = std::max(guess, level);
  }
  const double largest = *std::max_element(plan.share.begin(), plan.share.begin() + scores.heads);
  for (std::uint32_t g = 0; g < scores.heads; ++g) {
    plan.share[g] /= largest;
  }
  const std::uint64_t least = least_threshold(rows, scores.row_tiles);
  const auto expected = [&](int level) {
    set_limits(plan, scores.heads, level, weights, least);
    return sum(plan.limits.data()) + tile_tokens * calibration_tiles;
  };
  plan.level = largest_level(expected, 65536 * rows * calibration_tiles / scores.row_tiles, guess);
  set_limits(plan, scores.heads, plan.level, weights, least);
  return plan;
}

bool grow_rows(sketch_plan& plan, const score_summary& scores, const selector_config& options,
               std::span<const double> factors, std::uint64_t calibration_tiles,
               const limit_sum& sum) {
  if (scores.row_tiles == 0 || plan.level == last_level) {
    return false;
  }
  // The floor stays that of the first rows: probabilities must not fall.
  const std::uint64_t least = least_threshold(plan.budget.rows, scores.row_tiles);
  const auto& weights = selection_weights(options);
  const auto grown = [&](int held_back) {
    sketch_plan next = plan;
    for (std::uint32_t g = 0; g < scores.heads; ++g) {
      const int steps = std::max(0, steps_of(factors[g]) - held_back);
      next.share[g] *= std::ldexp(exp2_32nds[static_cast<std::size_t>(steps) % 32], steps / 32);
    }
    set_limits(next, scores.heads, next.level, weights, least);
    return next;
  };
  const std::uint64_t cap = std::uint64_t{65536} * options.cap_ppm * tile_tokens / million;
  const auto too_many = [&](const sketch_plan& next) {
    return sum(next.limits.data()) + tile_tokens * calibration_tiles > cap * calibration_tiles;
  };
  int low = 0, high = steps_of(*std::max_element(factors.begin(), factors.end()));
  while (low < high) {
    const int middle = (low + high) / 2;
    if (too_many(grown(middle))) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const sketch_plan next = grown(low);
  const bool changed = next.share != plan.share;
  plan = next;
  return changed;
}

namespace {

/// S2 of each whole tile: the largest share of the squared weights over the heads.
std::vector<double> tile_shares(const sketch_plan& plan, std::uint32_t heads,
                                std::span<const std::int64_t> squares) {
  std::vector<double> shares(squares.size() / heads);
  for (std::size_t tile = 0; tile < shares.size(); ++tile) {
    for (std::uint32_t g = 0; g < heads; ++g) {
      const double share =
          static_cast<double>(squares[tile * heads + g]) / (plan.mass[g] * plan.mass[g]);
      shares[tile] = std::max(shares[tile], share);
    }
  }
  return shares;
}

/// Thresholds of the tiles in `rest` that draw `expected` of them, Pi ~ sqrt(share).
void plan_audit(std::span<const double> shares, std::span<const std::uint32_t> rest,
                std::uint64_t expected, std::vector<std::uint32_t>& thresholds) {
  double largest = 0.0;
  for (const std::uint32_t tile : rest) {
    largest = std::max(largest, shares[tile]);
  }
  std::vector<double> weights(rest.size(), 1.0);
  if (largest > 0.0) {
    std::transform(rest.begin(), rest.end(), weights.begin(),
                   [&](std::uint32_t tile) { return std::sqrt(shares[tile] / largest); });
  }
  const std::uint64_t least = std::max<std::uint64_t>(1, 65536 * expected / (50 * rest.size()));
  const auto threshold = [&](std::size_t i, double factor) {
    const double free = std::floor(65536.0 * weights[i] * factor) + static_cast<double>(least);
    return static_cast<std::uint32_t>(std::min(free, double{certain}));
  };
  const auto sum = [&](int level) {
    if (level == last_level) {
      return std::uint64_t{certain} * rest.size();
    }
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      total += threshold(i, growth(level));
    }
    return total;
  };
  const int level = largest_level(sum, 65536 * expected, last_level / 2);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    thresholds[rest[i]] = level == last_level ? certain : threshold(i, growth(level));
  }
}

}  // namespace

std::vector<std::uint32_t> plan_wholes(const sketch_plan& rows, const selector_config& options,
                                       std::uint32_t heads, std::span<const std::int64_t> squares) {
  const std::vector<double> shares = tile_shares(rows, heads, squares);
  const std::uint64_t tiles = rows.budget.tiles;
  const bool audits =
      options.estimator == estimator_kind::ht || (options.budget_ppm >= 50'000 && tiles >= 2);
  const std::uint64_t audited = audits ? std::max<std::uint64_t>(1, tiles / 4) : 0;
  std::vector<std::uint32_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return shares[a] > shares[b]; });
  const auto rest = order.begin() + static_cast<std::ptrdiff_t>(tiles - audited);
  std::vector<std::uint32_t> thresholds(shares.size(), 0);
  std::for_each(order.begin(), rest, [&](std::uint32_t tile) { thresholds[tile] = certain; });
  std::sort(rest, order.end());
  if (audited > 0 && rest != order.end()) {
    plan_audit(shares, {rest, order.end()}, audited, thresholds);
  }
  return thresholds;
}

}  // namespace kvtier::lsh
