#include "lsh/vattention_selector.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lsh/heaviest_tokens.hpp"
#include "lsh/poisson_draw.hpp"
#include "lsh/row_budget.hpp"
#include "lsh/selector_checks.hpp"
#include "lsh/shared_work.hpp"

namespace kvtier::lsh {
namespace {

constexpr double ppm_of_all = 1e6;

/// The z at which a standard normal number is beyond +-z with probability delta.
double two_sided_quantile(double delta) {
  constexpr int halvings = 60;
  double low = 0.0;
  double high = 10.0;
  for (int i = 0; i < halvings; ++i) {
    const double z = (low + high) / 2;
    (std::erfc(z / std::sqrt(2.0)) > delta ? low : high) = z;
  }
  return low;
}

class vattention_selection final : public key_selection {
 public:
  vattention_selection(const selector_config& options, std::uint64_t seed,
                       std::span<const tile_entry> tiles, const selector_query& query)
      : key_selection("vattention", tiles, query), options_(options), seed_(seed), query_(query) {}

  selection choose(cpu::task_arena* helpers) override {
    selection chosen = selection_of({}, scores());
    if (scores().tokens() == 0) {
      return chosen;
    }
    const std::vector<head_mass> masses = scores().masses(helpers);
    const std::uint64_t rows = rows_of_budget(options_.budget_ppm, scores().tiles().size());
    const certain_tokens top = take_heaviest(scores(), masses, rows / 2, helpers);
    std::vector<std::uint32_t> thresholds(scores().tokens(), 0);
    for (const std::uint32_t place : top.rows) {
      thresholds[place] = certain;
    }
    for (const std::uint32_t tile : top.tiles) {
      std::fill_n(thresholds.begin() + std::ptrdiff_t{tile} * tile_tokens, tile_tokens, certain);
    }
    const std::uint64_t taken = top.rows.size() + top.tiles.size() * tile_tokens;
    if (taken < scores().tokens()) {
      const double pi = probability(taken, masses, thresholds, helpers);
      const auto threshold =
          static_cast<std::uint32_t>(std::clamp(std::rint(pi * certain), 1.0, double{certain}));
      std::replace(thresholds.begin(), thresholds.end(), 0u, threshold);
    }
    draw_poisson(numbers_of(seed_, query_), scores().tiles(), thresholds, chosen);
    return chosen;
  }

 private:
  /// Of the rest, what has the threshold 0; `taken` tokens are read anyway.
  double probability(std::uint64_t taken, const std::vector<head_mass>& masses,
                     const std::vector<std::uint32_t>& thresholds, cpu::task_arena* helpers) const {
    const std::size_t tiles = scores().tiles().size();
    const auto rest = static_cast<double>(scores().tokens() - taken);
    const auto share_of = [&](std::uint32_t ppm) {
      const std::uint64_t rows = rows_of_budget(ppm, tiles);
      return rows > taken ? static_cast<double>(rows - taken) / rest : 0.0;
    };
    const double least = share_of(options_.budget_ppm);
    if (options_.epsilon_ppm == 0) {
      return least;
    }
    std::vector<double> asked(masses.size());
    share_work(asked.size(), helpers, [&](std::size_t g) {
      asked[g] = asked_by(static_cast<std::uint32_t>(g), masses[g], thresholds);
    });
    const double most = share_of(options_.cap_ppm);
    return std::max(least, std::min(most, *std::max_element(asked.begin(), asked.end())));
  }

  double asked_by(std::uint32_t g, const head_mass& mass,
                  const std::vector<std::uint32_t>& thresholds) const {
    const auto top = static_cast<double>(mass.top);
    const double total = mass.sum + std::exp(window_log_mass(query_, g) - top);
    const double allowed = options_.epsilon_ppm / ppm_of_all * total /
                           two_sided_quantile(options_.delta_ppm / ppm_of_all);
    const double squares = rest_squares(g, top, thresholds);
    return squares > 0.0 ? squares / (squares + allowed * allowed) : 0.0;
  }

  /// S2 in units of exp(2 top).
  double rest_squares(std::uint32_t g, double top,
                      const std::vector<std::uint32_t>& thresholds) const {
    const float* const logits = scores().logits(g);
    double sum = 0.0;
    for (std::size_t first = 0; first < scores().tokens(); first += tile_tokens) {
      double squares = 0.0;
      double weights = 0.0;
      for (std::size_t i = first; i < first + tile_tokens; ++i) {
        const double weight =
            thresholds[i] == 0 ? std::exp(static_cast<double>(logits[i]) - top) : 0.0;
        weights += weight;
        squares += weight * weight;
      }
      sum += scores().whole(first) ? weights * weights : squares;
    }
    return sum;
  }

  selector_config options_;
  std::uint64_t seed_;
  selector_query query_;
};

}  // namespace

vattention_selector::vattention_selector(const selector_config& options, std::uint32_t head_dim,
                                         std::uint64_t seed)
    : options_(options), head_dim_(checked_head_dim(options, head_dim)), seed_(seed) {
  if (options.epsilon_ppm > 0) {
    check_share("epsilon_ppm", options.epsilon_ppm);
    check_share("delta_ppm", options.delta_ppm);
    check_share("cap_ppm", options.cap_ppm);
  }
}

std::unique_ptr<query_selection> vattention_selector::begin(std::span<const tile_entry> tiles,
                                                            const selector_query& query) const {
  check_query(query, head_dim_);
  return std::make_unique<vattention_selection>(options_, seed_, tiles, query);
}

}  // namespace kvtier::lsh
