#include "tools/eval/method_run.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "lsh/logit_spread.hpp"
#include "tools/eval/indexed_case.hpp"
#include "tools/eval/sampled_answer.hpp"

namespace kvtier::eval {

bool draws(selector_kind kind) noexcept {
  return kind == selector_kind::uniform || kind == selector_kind::oracle ||
         kind == selector_kind::vattention || kind == selector_kind::lsh ||
         kind == selector_kind::sketch;
}

bool draws_index(selector_kind kind) noexcept { return kind == selector_kind::lsh; }

bool are_successive(const head_case& data) noexcept {
  for (std::size_t q = 1; q < data.queries.size(); ++q) {
    if (data.queries[q].context != data.queries[0].context ||
        data.queries[q].step != data.queries[q - 1].step + 1) {
      return false;
    }
  }
  return data.queries.size() > 1;
}

namespace {

/// sketch:bits=auto as the case's own keys and queries settle it; other options as they are.
selector_config settled(selector_config options, const judged_data::judged_case& one) {
  if (options.kind != selector_kind::sketch || options.bits != 0) {
    return options;
  }
  const head_case& data = one.stored->data();
  std::vector<lsh::spread_query> queries;
  for (const judged_query& query : one.queries) {
    queries.push_back({data.queries[query.number].values.data(), query.tiles});
  }
  const std::size_t tiles = one.stored->tiles();
  options.bits =
      lsh::bits_for(lsh::logit_spread({one.stored->tile_keys(0), one.stored->tile_keys(tiles)},
                                      queries, data.heads, data.head_dim));
  return options;
}

}  // namespace

method_run::method_run(const judged_data& data, const selector_config& options,
                       const evaluation_setting& setting, cpu::task_arena& arena)
    : data_(data), options_(options), setting_(setting), arena_(arena) {
  for (const judged_data::judged_case& one : data.cases()) {
    records_.emplace_back(one.queries.size());
  }
  case_options_.resize(data.cases().size());
  arena.parallel_for(case_options_.size(),
                     [&](std::size_t i) { case_options_[i] = settled(options, data.cases()[i]); });
}

std::unique_ptr<lsh::token_selector> method_run::selector(const selector_config& settled_options,
                                                          std::uint32_t seed) const {
  selector_config options = settled_options;
  if (draws_index(options.kind)) {
    options.rotation_seed += static_cast<std::uint32_t>(setting_.seed) + seed;
  }
  const std::uint32_t head_dim = data_.cases().front().stored->data().head_dim;
  return lsh::make_token_selector(options, head_dim, setting_.seed + seed);
}

void method_run::answer_all(std::uint32_t seeds) {
  if (!draws_index(options_.kind)) {
    answer_seeds(0, seeds);
    return;
  }
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    answer_seeds(seed, 1);
  }
}

/// Over indexes that are built for the first of the seeds.
void method_run::answer_seeds(std::uint32_t first, std::uint32_t count) {
  // One selector for all cases of the same options: what it keeps (faiss) is for all of them.
  std::vector<std::shared_ptr<lsh::token_selector>> indexers;
  for (std::size_t i = 0; i < case_options_.size(); ++i) {
    const auto same = std::find(case_options_.begin(), case_options_.end(), case_options_[i]);
    const auto owner = static_cast<std::size_t>(same - case_options_.begin());
    indexers.push_back(owner < i ? indexers[owner] : selector(case_options_[i], first));
  }
  std::vector<std::unique_ptr<indexed_case>> indexed(records_.size());
  arena_.parallel_for(indexed.size(), [&](std::size_t i) {
    indexed[i] = std::make_unique<indexed_case>(*data_.cases()[i].stored, *indexers[i],
                                                setting_.whole_share);
  });
  std::vector<std::pair<std::size_t, std::size_t>> places;
  for (std::size_t i = 0; i < indexed.size(); ++i) {
    build_seconds_ += first == 0 ? indexed[i]->build_seconds() : 0.0;
    index_bytes_ += first == 0 ? indexed[i]->bytes() : 0;
    for (std::size_t q = 0; q < records_[i].size(); ++q) {
      places.emplace_back(i, q);
    }
  }
  arena_.parallel_for(places.size(), [&](std::size_t place) {
    const auto [i, q] = places[place];
    const judged_query& judged = data_.cases()[i].queries[q];
    const bool keep = are_successive(data_.cases()[i].stored->data());
    for (std::uint32_t seed = first; seed < first + count; ++seed) {
      const auto other = seed == first ? nullptr : selector(case_options_[i], seed);
      records_[i][q].add(
          answer(*indexed[i], judged, other != nullptr ? *other : *indexers[i], case_options_[i]),
          judged, keep);
    }
  });
}

}  // namespace kvtier::eval
