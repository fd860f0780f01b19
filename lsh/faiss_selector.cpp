#include "lsh/faiss_selector.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "lsh/faiss_cache.hpp"
#include "lsh/faiss_index.hpp"
#include "lsh/row_budget.hpp"
#include "lsh/selector_checks.hpp"

namespace kvtier::lsh {
namespace {

constexpr std::size_t cache_bytes = std::size_t{4} << 30;

/// What each head found, the best first.
using findings = std::vector<std::vector<std::uint32_t>>;

/// The tokens that are read, and what they cost.
class taken_tokens {
 public:
  taken_tokens(std::span<const tile_entry> tiles, std::uint64_t rows)
      : tiles_(tiles), budget_(rows), taken_(tiles.size() * tile_tokens, false) {}

  bool has(std::uint32_t token) const { return taken_[unit_of(token)]; }
  /// False: it is too dear.
  bool take(std::uint32_t token) {
    if (!budget_.pay(whole(token) ? tile_tokens : 1)) {
      return false;
    }
    taken_[unit_of(token)] = true;
    return true;
  }
  bool used_up() const { return budget_.used_up(); }

  void write(selection& chosen) const {
    for (std::uint32_t token = 0; token < taken_.size(); ++token) {
      if (taken_[token]) {
        (whole(token) ? chosen.tiles : chosen.rows)
            .push_back(whole(token) ? token / tile_tokens : token);
      }
    }
    chosen.thresholds.assign(chosen.rows.size(), certain);
    chosen.tile_thresholds.assign(chosen.tiles.size(), certain);
  }

 private:
  bool whole(std::uint32_t token) const { return tiles_[token / tile_tokens].whole; }
  /// The first token of a whole tile stands for the tile.
  std::uint32_t unit_of(std::uint32_t token) const {
    return whole(token) ? token - token % tile_tokens : token;
  }

  std::span<const tile_entry> tiles_;
  row_budget budget_;
  std::vector<bool> taken_;  // [tokens]
};

/// nullopt: a head has run out of tokens before the budget was used up.
std::optional<taken_tokens> take_turns(const findings& found, taken_tokens taken) {
  std::vector<std::size_t> at(found.size(), 0);
  for (std::size_t g = 0; !taken.used_up(); g = (g + 1) % found.size()) {
    while (at[g] < found[g].size() && taken.has(found[g][at[g]])) {
      ++at[g];
    }
    if (at[g] == found[g].size()) {
      return std::nullopt;
    }
    if (!taken.take(found[g][at[g]])) {
      break;
    }
  }
  return taken;
}

/// Appends the tokens of [0, count) that are missing.
void complete(std::vector<std::uint32_t>& found, std::size_t count) {
  std::vector<bool> there(count, false);
  for (const std::uint32_t token : found) {
    there[token] = true;
  }
  for (std::uint32_t token = 0; token < count; ++token) {
    if (!there[token]) {
      found.push_back(token);
    }
  }
}

class faiss_selection final : public query_selection {
 public:
  faiss_selection(std::uint32_t budget_ppm, faiss_cache& cache, std::span<const tile_entry> tiles,
                  const selector_query& query)
      : budget_ppm_(budget_ppm),
        cache_(cache),
        tiles_(tiles),
        query_(query),
        values_(query.values, query.values + std::size_t{query.heads} * query.head_dim) {
    std::transform(values_.begin(), values_.end(), values_.begin(), faiss_keys::tame);
  }

  void see(std::uint32_t, const std::byte* const*, element_type) override {
    throw std::logic_error("the faiss selector is shown no keys: do not call see");
  }

  /// Without helpers: they could wait for the index that is in use here.
  selection choose(cpu::task_arena*) override {
    selection chosen;
    chosen.heads = query_.heads;
    chosen.reference.assign(query_.heads, -std::numeric_limits<float>::infinity());
    if (!tiles_.empty()) {
      cache_.use(tiles_, query_.layer, query_.kv_head,
                 [&](const faiss_index& index) { take(index).write(chosen); });
      find_references(chosen);
    }
    return chosen;
  }

 private:
  taken_tokens take(const faiss_index& index) const {
    const std::size_t tokens = tiles_.size() * tile_tokens;
    const std::uint64_t rows = rows_of_budget(budget_ppm_, tiles_.size());
    // Twice what a head gets if no two find the same.
    for (std::size_t k = std::min(rows, 2 * rows / query_.heads + 1);;
         k = std::min(2 * k, tokens)) {
      findings found;
      for (std::uint32_t g = 0; g < query_.heads; ++g) {
        found.push_back(index.search(values_of(g), k));
        if (k == tokens) {
          complete(found.back(), tokens);
        }
      }
      taken_tokens nothing(tiles_, rows);
      if (const auto taken = take_turns(found, nothing); taken.has_value() || k == tokens) {
        return *taken;
      }
    }
  }

  const float* values_of(std::uint32_t g) const {
    return values_.data() + std::size_t{g} * query_.head_dim;
  }

  /// The largest logit of what is read.
  void find_references(selection& chosen) const {
    std::vector<float> key(query_.head_dim);
    for (const std::uint32_t row : chosen.rows) {
      widen(row, key.data(), chosen.reference);
    }
    for (const std::uint32_t tile : chosen.tiles) {
      for (std::uint32_t token = 0; token < tile_tokens; ++token) {
        widen(tile * tile_tokens + token, key.data(), chosen.reference);
      }
    }
  }

  /// key [head_dim]: scratch.
  void widen(std::uint32_t token, float* key, std::vector<float>& references) const {
    const faiss_keys keys(query_.head_dim);
    keys.read_token(tiles_[token / tile_tokens].index, token % tile_tokens, key);
    for (std::uint32_t g = 0; g < query_.heads; ++g) {
      double product = 0.0;
      for (std::size_t d = 0; d < query_.head_dim; ++d) {
        product += double{values_of(g)[d]} * double{key[d]};
      }
      const double logit = product / std::sqrt(static_cast<double>(query_.head_dim));
      references[g] = std::max(references[g], static_cast<float>(logit));
    }
  }

  std::uint32_t budget_ppm_;
  faiss_cache& cache_;
  std::span<const tile_entry> tiles_;
  selector_query query_;
  std::vector<float> values_;  // [heads][head_dim] tame
};

class faiss_selector final : public token_selector {
 public:
  faiss_selector(const selector_config& options, std::uint32_t head_dim)
      : budget_ppm_(options.budget_ppm), keys_(head_dim), cache_(options, head_dim, cache_bytes) {}

  std::size_t index_bytes(std::uint32_t, std::uint32_t) const override { return keys_.bytes(); }
  void index_tile(const tile_content& tile, std::byte* index) const override {
    keys_.write(tile.keys, index);
  }
  bool reads_keys() const noexcept override { return false; }
  std::unique_ptr<query_selection> begin(std::span<const tile_entry> tiles,
                                         const selector_query& query) const override {
    check_query(query, keys_.head_dim());
    return std::make_unique<faiss_selection>(budget_ppm_, cache_, tiles, query);
  }

 private:
  std::uint32_t budget_ppm_;
  faiss_keys keys_;
  mutable faiss_cache cache_;  // thread-safe; what it finds does not depend on its content
};

void check_number(const char* name, std::uint32_t value, std::uint32_t least, std::uint32_t most) {
  if (value < least || value > most) {
    throw std::invalid_argument("selector: " + std::string(name) + " " + std::to_string(value) +
                                " is not between " + std::to_string(least) + " and " +
                                std::to_string(most));
  }
}

}  // namespace

std::unique_ptr<token_selector> make_faiss_selector(const selector_config& options,
                                                    std::uint32_t head_dim) {
  check_selector(options, head_dim);
  static_cast<void>(to_string(options));  // throws where an enumeration does not know a value
  check_number("faiss_m", options.faiss_m, 2, 256);
  check_number("faiss_ef", options.faiss_ef, 0, 65536);
  check_number("faiss_lists", options.faiss_lists, 0, 65536);
  check_number("faiss_probes", options.faiss_probes, 1, 65536);
  check_number("faiss_bits", options.faiss_bits, 0, 1024);
  return std::make_unique<faiss_selector>(options, head_dim);
}

}  // namespace kvtier::lsh
