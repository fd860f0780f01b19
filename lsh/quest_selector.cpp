#include "lsh/quest_selector.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/element.hpp"
#include "lsh/key_scores.hpp"
#include "lsh/logit_range.hpp"
#include "lsh/ranking.hpp"
#include "lsh/row_budget.hpp"
#include "lsh/selector_checks.hpp"
#include "lsh/shared_work.hpp"

namespace kvtier::lsh {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr std::size_t bound_lanes = 16;
constexpr std::uint16_t sign = 0x8000;
constexpr std::uint16_t largest_bf16 = 0x7f7f;

/// The largest bf16 that is at most x. Infinities become finite: 0 times them is 0 then.
std::uint16_t bf16_below(float x) {
  if (std::isinf(x)) {
    return static_cast<std::uint16_t>(x < 0.0f ? sign | largest_bf16 : largest_bf16);
  }
  const std::uint16_t nearest = bf16_from_float(x);
  if (float_from_bf16(nearest) <= x) {
    return std::isinf(float_from_bf16(nearest)) ? sign | largest_bf16 : nearest;
  }
  if ((nearest & ~sign) == 0) {
    return sign | 1;
  }
  return static_cast<std::uint16_t>((nearest & sign) == 0 ? nearest - 1 : nearest + 1);
}

std::uint16_t bf16_above(float x) { return static_cast<std::uint16_t>(bf16_below(-x) ^ sign); }

/// What the bounds of all pages say.
class page_scores {
 public:
  page_scores(const page_bounds& bounds, std::span<const tile_entry> tiles,
              const selector_query& query, cpu::task_arena* helpers)
      : heads_(query.heads),
        scale_(1.0f / std::sqrt(static_cast<float>(query.head_dim))),
        pages_(tiles.size() * bounds.pages()),
        scores_(query.heads * pages_) {
    share_tokens(tiles.size() * tile_tokens, helpers, [&](std::size_t first, std::size_t last) {
      std::vector<float> page(std::size_t{2} * bounds.head_dim());
      for (std::size_t at = first / bounds.page_tokens(); at < last / bounds.page_tokens(); ++at) {
        const auto number = static_cast<std::uint32_t>(at % bounds.pages());
        bounds.read(tiles[at / bounds.pages()].index, number, page.data());
        for (std::uint32_t g = 0; g < query.heads; ++g) {
          scores_[g * pages_ + at] =
              bounds.bound(query.values + g * bounds.head_dim(), page.data());
        }
      }
    });
  }

  /// [heads] natural log; -infinity without pages.
  std::vector<float> references() const {
    std::vector<float> all(heads_, -infinity);
    for (std::uint32_t g = 0; g < heads_ && pages_ > 0; ++g) {
      logit_range range;
      for (std::size_t i = 0; i < pages_; ++i) {
        const bound_pair& score = scores_[g * pages_ + i];
        range.widen(scale_ * score.least, scale_ * score.most);
      }
      all[g] = range.reference();
    }
    return all;
  }

  ranking ranks(std::uint32_t g, std::size_t expected) const {
    std::vector<ranked> all(pages_);
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      const float most = scores_[g * pages_ + i].most;
      all[i] = {std::isnan(most) ? -infinity : most, i};
    }
    return {std::move(all), expected};
  }

 private:
  std::uint32_t heads_;
  float scale_;  // from products to logits
  std::size_t pages_;
  std::vector<bound_pair> scores_;  // [heads][pages]
};

class quest_selection final : public query_selection {
 public:
  quest_selection(std::uint32_t budget_ppm, const page_bounds& bounds,
                  std::span<const tile_entry> tiles, const selector_query& query)
      : budget_ppm_(budget_ppm), bounds_(bounds), tiles_(tiles), query_(query) {}

  void see(std::uint32_t, const std::byte* const*, element_type) override {
    throw std::logic_error("the quest selector reads no keys: do not call see");
  }

  selection choose(cpu::task_arena* helpers) override {
    const page_scores scores(bounds_, tiles_, query_, helpers);
    const std::uint64_t rows = rows_of_budget(budget_ppm_, tiles_.size());
    const std::vector<bool> taken = take_turns(rankings(scores, rows, helpers), rows);
    selection chosen;
    chosen.heads = query_.heads;
    chosen.reference = scores.references();
    for (std::uint32_t page = 0; page < taken.size(); ++page) {
      if (taken[page]) {
        append(page, chosen);
      }
    }
    chosen.thresholds.assign(chosen.rows.size(), certain);
    chosen.tile_thresholds.assign(chosen.tiles.size(), certain);
    return chosen;
  }

 private:
  /// What a page takes the place of: the first page of a whole tile stands for the tile.
  std::uint32_t unit_of(std::uint32_t page) const {
    return tiles_[page / bounds_.pages()].whole ? page - page % bounds_.pages() : page;
  }

  std::vector<ranking> rankings(const page_scores& scores, std::uint64_t rows,
                                cpu::task_arena* helpers) const {
    const auto expected = static_cast<std::size_t>(rows / bounds_.page_tokens() / query_.heads);
    std::vector<std::optional<ranking>> made(query_.heads);
    share_work(made.size(), helpers, [&](std::size_t g) {
      made[g].emplace(scores.ranks(static_cast<std::uint32_t>(g), expected));
    });
    std::vector<ranking> all;
    all.reserve(made.size());
    for (std::optional<ranking>& one : made) {
      all.push_back(std::move(*one));
    }
    return all;
  }

  /// [pages] what is taken, by unit.
  std::vector<bool> take_turns(std::vector<ranking> heads, std::uint64_t rows) const {
    std::vector<bool> taken(tiles_.size() * bounds_.pages(), false);
    row_budget budget(rows);
    for (std::size_t g = 0;; g = (g + 1) % heads.size()) {
      const ranked* next = heads[g].next();
      while (next != nullptr && taken[unit_of(next->place)]) {
        next = heads[g].next();
      }
      if (next == nullptr) {
        return taken;  // one head has seen all pages taken
      }
      const bool whole = tiles_[next->place / bounds_.pages()].whole;
      if (!budget.pay(whole ? tile_tokens : bounds_.page_tokens())) {
        return taken;
      }
      taken[unit_of(next->place)] = true;
    }
  }

  void append(std::uint32_t page, selection& chosen) const {
    if (tiles_[page / bounds_.pages()].whole) {
      chosen.tiles.push_back(page / bounds_.pages());
      return;
    }
    for (std::uint32_t token = 0; token < bounds_.page_tokens(); ++token) {
      chosen.rows.push_back(page * bounds_.page_tokens() + token);
    }
  }

  std::uint32_t budget_ppm_;
  page_bounds bounds_;
  std::span<const tile_entry> tiles_;
  selector_query query_;
};

page_bounds checked_bounds(const selector_config& options, std::uint32_t head_dim) {
  check_selector(options, head_dim);
  if (options.page < 8 || options.page > tile_tokens || tile_tokens % options.page != 0) {
    throw std::invalid_argument("selector: page " + std::to_string(options.page) +
                                " is not 8, 16, 32 or 64");
  }
  return {options.page, head_dim};
}

}  // namespace

std::size_t page_bounds::bytes() const noexcept {
  return std::size_t{2} * pages() * head_dim_ * sizeof(std::uint16_t);
}

void page_bounds::write(const float* keys, std::byte* index) const {
  std::vector<float> least(head_dim_), most(head_dim_);
  std::vector<std::uint16_t> stored;
  for (std::uint32_t page = 0; page < pages(); ++page) {
    std::fill(least.begin(), least.end(), infinity);
    std::fill(most.begin(), most.end(), -infinity);
    for (std::uint32_t token = 0; token < page_tokens_; ++token) {
      const float* const key = keys + std::size_t{page * page_tokens_ + token} * head_dim_;
      for (std::uint32_t d = 0; d < head_dim_; ++d) {
        least[d] = key[d] < least[d] ? key[d] : least[d];
        most[d] = key[d] > most[d] ? key[d] : most[d];
      }
    }
    std::transform(least.begin(), least.end(), std::back_inserter(stored), bf16_below);
    std::transform(most.begin(), most.end(), std::back_inserter(stored), bf16_above);
  }
  std::memcpy(index, stored.data(), bytes());
}

void page_bounds::read(const std::byte* index, std::uint32_t number, float* page) const noexcept {
  const std::size_t values = std::size_t{2} * head_dim_;
  to_float(element_type::bf16, index + number * values * sizeof(std::uint16_t), page, values);
}

bound_pair page_bounds::bound(const float* query, const float* page) const noexcept {
  std::array<float, bound_lanes> least{}, most{};
  for (std::uint32_t d = 0; d < head_dim_; d += bound_lanes) {
    for (std::uint32_t j = 0; j < bound_lanes; ++j) {
      const float a = query[d + j] * page[d + j];
      const float b = query[d + j] * page[head_dim_ + d + j];
      least[j] += std::min(a, b);
      most[j] += std::max(a, b);
    }
  }
  return {std::accumulate(least.begin(), least.end(), 0.0f),
          std::accumulate(most.begin(), most.end(), 0.0f)};
}

quest_selector::quest_selector(const selector_config& options, std::uint32_t head_dim)
    : budget_ppm_(options.budget_ppm), bounds_(checked_bounds(options, head_dim)) {}

void quest_selector::index_tile(const tile_content& tile, std::byte* index) const {
  bounds_.write(tile.keys, index);
}

std::unique_ptr<query_selection> quest_selector::begin(std::span<const tile_entry> tiles,
                                                       const selector_query& query) const {
  check_query(query, bounds_.head_dim());
  return std::make_unique<quest_selection>(budget_ppm_, bounds_, tiles, query);
}

}  // namespace kvtier::lsh
