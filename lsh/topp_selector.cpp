#include "lsh/topp_selector.hpp"

#include <cmath>
#include <utility>
#include <vector>

#include "lsh/heaviest_tokens.hpp"
#include "lsh/ranking.hpp"
#include "lsh/selector_checks.hpp"
#include "lsh/shared_work.hpp"

namespace kvtier::lsh {
namespace {

constexpr std::uint32_t all_of_it = 1'000'000;

class topp_selection final : public key_selection {
 public:
  topp_selection(std::uint32_t mass_ppm, std::span<const tile_entry> tiles,
                 const selector_query& query)
      : key_selection("topp", tiles, query), mass_ppm_(mass_ppm), query_(query) {}

  selection choose(cpu::task_arena* helpers) override {
    if (scores().tokens() == 0) {
      return selection_of({}, scores());
    }
    const std::vector<head_mass> masses = scores().masses(helpers);
    std::vector<std::vector<std::uint32_t>> heads(masses.size());
    share_work(heads.size(), helpers, [&](std::size_t g) {
      heads[g] = taken_by(static_cast<std::uint32_t>(g), masses[g]);
    });
    std::vector<bool> taken(scores().tokens(), false);
    for (const auto& places : heads) {
      for (const std::uint32_t place : places) {
        taken[scores().whole(place) ? place / tile_tokens * tile_tokens : place] = true;
      }
    }
    certain_tokens list;
    for (std::uint32_t place = 0; place < taken.size(); ++place) {
      if (taken[place]) {
        const bool whole = scores().whole(place);
        (whole ? list.tiles : list.rows).push_back(whole ? place / tile_tokens : place);
      }
    }
    return selection_of(std::move(list), scores());
  }

 private:
  /// What the taken tokens must weigh, in units of exp(mass.top).
  double wanted(std::uint32_t g, const head_mass& mass) const {
    const double share = mass_ppm_ / double{all_of_it};
    const double window = std::exp(window_log_mass(query_, g) - static_cast<double>(mass.top));
    return share * mass.sum - (1.0 - share) * window;
  }

  std::vector<std::uint32_t> taken_by(std::uint32_t g, const head_mass& mass) const {
    const float* const logits = scores().logits(g);
    std::vector<ranked> all(scores().tokens());
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      all[i] = {logits[i], i};
    }
    const bool everything = mass_ppm_ == all_of_it;
    const double enough = everything ? 0.0 : wanted(g, mass);
    ranking ranks(std::move(all), 0);
    std::vector<std::uint32_t> taken;
    for (double held = 0.0; everything || held < enough;) {
      const ranked* const next = ranks.next();
      if (next == nullptr) {
        break;
      }
      held += std::exp(static_cast<double>(next->weight) - static_cast<double>(mass.top));
      taken.push_back(next->place);
    }
    return taken;
  }

  std::uint32_t mass_ppm_;
  selector_query query_;
};

}  // namespace

topp_selector::topp_selector(const selector_config& options, std::uint32_t head_dim)
    : mass_ppm_(options.mass_ppm), head_dim_(checked_head_dim(options, head_dim)) {
  check_share("mass_ppm", options.mass_ppm);
}

std::unique_ptr<query_selection> topp_selector::begin(std::span<const tile_entry> tiles,
                                                      const selector_query& query) const {
  check_query(query, head_dim_);
  return std::make_unique<topp_selection>(mass_ppm_, tiles, query);
}

}  // namespace kvtier::lsh
