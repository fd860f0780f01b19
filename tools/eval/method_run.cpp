#include "tools/eval/method_run.hpp"

#include <utility>

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

method_run::method_run(const judged_data& data, const selector_config& options,
                       const evaluation_setting& setting, cpu::task_arena& arena)
    : data_(data), options_(options), setting_(setting), arena_(arena) {
  for (const judged_data::judged_case& one : data.cases()) {
    records_.emplace_back(one.queries.size());
  }
}

std::unique_ptr<lsh::token_selector> method_run::selector(std::uint32_t seed) const {
  selector_config options = options_;
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
  const auto indexer = selector(first);
  const head_case& one = data_.cases().front().stored->data();
  index_bytes_ = indexer->index_bytes(one.layer, one.kv_head);
  std::vector<std::unique_ptr<indexed_case>> indexed(records_.size());
  arena_.parallel_for(indexed.size(), [&](std::size_t i) {
    indexed[i] =
        std::make_unique<indexed_case>(*data_.cases()[i].stored, *indexer, setting_.whole_share);
  });
  std::vector<std::pair<std::size_t, std::size_t>> places;
  for (std::size_t i = 0; i < indexed.size(); ++i) {
    build_seconds_ += first == 0 ? indexed[i]->build_seconds() : 0.0;
    for (std::size_t q = 0; q < records_[i].size(); ++q) {
      places.emplace_back(i, q);
    }
  }
  arena_.parallel_for(places.size(), [&](std::size_t place) {
    const auto [i, q] = places[place];
    const judged_query& judged = data_.cases()[i].queries[q];
    const bool keep = are_successive(data_.cases()[i].stored->data());
    for (std::uint32_t seed = first; seed < first + count; ++seed) {
      const auto other = seed == first ? nullptr : selector(seed);
      records_[i][q].add(
          answer(*indexed[i], judged, other != nullptr ? *other : *indexer, options_), judged,
          keep);
    }
  });
}

}  // namespace kvtier::eval
