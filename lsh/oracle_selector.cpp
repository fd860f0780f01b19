#include "lsh/oracle_selector.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "lsh/heaviest_tokens.hpp"
#include "lsh/poisson_draw.hpp"
#include "lsh/row_budget.hpp"
#include "lsh/selector_checks.hpp"
#include "lsh/shared_work.hpp"

namespace kvtier::lsh {
namespace {

/// Rows that the drawing of token i costs: of a whole tile, the first token stands for all 64.
std::vector<std::uint8_t> costs_of(const key_scores& scores) {
  std::vector<std::uint8_t> costs(scores.tokens(), 1);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (scores.whole(i)) {
      costs[i] = i % tile_tokens == 0 ? tile_tokens : 0;
    }
  }
  return costs;
}

/// exp(logit - top) of what is drawn: 0 where the cost is 0.
std::vector<float> weights_of(const key_scores& scores, std::uint32_t g, float top) {
  const float* const logits = scores.logits(g);
  std::vector<float> weights(scores.tokens());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = std::exp(logits[i] - top);
  }
  for (std::size_t first = 0; first < weights.size(); first += tile_tokens) {
    if (scores.whole(first)) {
      const auto begin = weights.begin() + static_cast<std::ptrdiff_t>(first);
      const float squares = std::inner_product(begin, begin + tile_tokens, begin, 0.0f);
      std::fill_n(begin, tile_tokens, 0.0f);
      *begin = std::sqrt(squares / tile_tokens);
    }
  }
  return weights;
}

/// The factor f at which the sum of cost min(1, f weight + least) is `target`, or the one at which
/// all positive weights are certain. Each pass takes those for certain that the last factor made
/// so, which only raises it.
double factor_for(const std::vector<float>& weights, const std::vector<std::uint8_t>& costs,
                  double target, double least) {
  constexpr double settled = 1.0 + 1e-6;
  double factor = 0.0;
  for (;;) {
    double fixed = 0.0;
    double free = 0.0;
    float smallest = std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double cost = costs[i];
      const auto weight = static_cast<double>(weights[i]);
      const bool sure = factor * weight + least >= 1.0;
      fixed += sure ? cost : cost * least;
      free += sure ? 0.0 : cost * weight;
      smallest = weights[i] > 0.0f ? std::min(smallest, weights[i]) : smallest;
    }
    if (free <= 0.0) {
      return 1.0 / static_cast<double>(smallest);
    }
    const double next = (target - fixed) / free;
    if (next <= factor * settled) {
      return factor;
    }
    factor = next;
  }
}

class oracle_selection final : public key_selection {
 public:
  oracle_selection(std::uint32_t budget_ppm, std::uint64_t seed, std::span<const tile_entry> tiles,
                   const selector_query& query)
      : key_selection("oracle", tiles, query),
        budget_ppm_(budget_ppm),
        seed_(seed),
        query_(query) {}

  selection choose(cpu::task_arena* helpers) override {
    selection chosen = selection_of({}, scores());
    if (scores().tokens() > 0) {
      draw_poisson(numbers_of(seed_, query_), scores().tiles(), thresholds(helpers), chosen);
    }
    return chosen;
  }

 private:
  std::vector<std::uint32_t> thresholds(cpu::task_arena* helpers) const {
    const std::uint64_t rows = rows_of_budget(budget_ppm_, scores().tiles().size());
    if (rows >= scores().tokens()) {
      return std::vector<std::uint32_t>(scores().tokens(), certain);
    }
    const std::vector<std::uint8_t> costs = costs_of(scores());
    const std::vector<float> weights = union_weights(costs, static_cast<double>(rows), helpers);
    const double factor = factor_for(weights, costs, static_cast<double>(rows), 1.0 / certain);
    std::vector<std::uint32_t> made;
    made.reserve(weights.size());
    for (const float weight : weights) {
      const double free = std::rint(factor * static_cast<double>(weight) * certain);
      made.push_back(static_cast<std::uint32_t>(std::min(free + 1.0, double{certain})));
    }
    return made;
  }

  /// Of each token the largest c_g w_gi.
  std::vector<float> union_weights(const std::vector<std::uint8_t>& costs, double rows,
                                   cpu::task_arena* helpers) const {
    const std::uint32_t heads = scores().heads();
    const std::vector<head_mass> masses = scores().masses(helpers);
    std::vector<std::vector<float>> weights(heads);
    std::vector<double> shares(heads);  // ln c_g
    share_work(heads, helpers, [&](std::size_t at) {
      const auto g = static_cast<std::uint32_t>(at);
      const auto top = static_cast<double>(masses[g].top);
      weights[g] = weights_of(scores(), g, masses[g].top);
      const double alone = std::log(factor_for(weights[g], costs, rows / heads, 0.0));
      const double window = window_log_mass(query_, g) - top;
      const double offered = std::log(masses[g].sum);
      const double mass =
          std::max(window, offered) + std::log1p(std::exp(-std::fabs(window - offered)));
      shares[g] = 0.5 * (alone - mass);
    });
    const double largest = *std::max_element(shares.begin(), shares.end());
    std::vector<float> all(scores().tokens(), 0.0f);
    for (std::uint32_t g = 0; g < heads; ++g) {
      const auto share = static_cast<float>(std::exp(shares[g] - largest));
      std::transform(all.begin(), all.end(), weights[g].begin(), all.begin(),
                     [share](float most, float weight) { return std::max(most, share * weight); });
    }
    return all;
  }

  std::uint32_t budget_ppm_;
  std::uint64_t seed_;
  selector_query query_;
};

}  // namespace

oracle_selector::oracle_selector(const selector_config& options, std::uint32_t head_dim,
                                 std::uint64_t seed)
    : budget_ppm_(options.budget_ppm),
      head_dim_(checked_head_dim(options, head_dim)),
      seed_(seed) {}

std::unique_ptr<query_selection> oracle_selector::begin(std::span<const tile_entry> tiles,
                                                        const selector_query& query) const {
  check_query(query, head_dim_);
  return std::make_unique<oracle_selection>(budget_ppm_, seed_, tiles, query);
}

}  // namespace kvtier::lsh
