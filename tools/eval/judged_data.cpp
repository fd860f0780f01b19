#include "tools/eval/judged_data.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "lsh/token_selector.hpp"

namespace kvtier::eval {

judged_data::judged_data(const std::vector<head_case>& cases, const exact_window& window,
                         cpu::task_arena& arena) {
  if (cases.empty()) {
    throw std::invalid_argument("eval: no cases to judge");
  }
  name_ = cases.front().data;
  for (const head_case& one : cases) {
    if (one.data != name_ || one.head_dim != cases.front().head_dim) {
      throw std::invalid_argument("eval: cases of \"" + name_ + "\" and \"" + one.data +
                                  "\" cannot be judged together");
    }
    cases_.emplace_back();
  }
  std::vector<std::pair<std::size_t, std::size_t>> places;
  arena.parallel_for(cases.size(), [&](std::size_t i) {
    cases_[i].stored = std::make_unique<stored_case>(cases[i], window);
    cases_[i].queries.resize(cases[i].queries.size());
  });
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (std::size_t q = 0; q < cases[i].queries.size(); ++q) {
      places.emplace_back(i, q);
    }
  }
  arena.parallel_for(places.size(), [&](std::size_t place) {
    const auto [i, q] = places[place];
    cases_[i].queries[q] = judge(*cases_[i].stored, q);
  });
}

std::uint64_t judged_data::tokens() const noexcept {
  std::size_t tiles = 0;
  for (const judged_case& one : cases_) {
    tiles = std::max(tiles, one.stored->tiles());
  }
  return std::uint64_t{lsh::tile_tokens} * tiles;
}

}  // namespace kvtier::eval
