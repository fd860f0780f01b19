#include "tests/lsh/sketch_kit.hpp"

#include <cmath>

namespace kvtier::lsh::test {

sketch_context::sketch_context(std::uint32_t head_dim, std::vector<float> keys,
                               std::vector<float> values, std::vector<float> queries)
    : head_dim_(head_dim),
      keys_(std::move(keys)),
      values_(std::move(values)),
      queries_(std::move(queries)),
      window_mass_(queries_.size() / head_dim, no_window_mass),
      entries_(keys_.size() / head_dim / tile_tokens) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].number = i;
  }
  query_.values = queries_.data();
  query_.heads = static_cast<std::uint32_t>(window_mass_.size());
  query_.head_dim = head_dim;
  query_.window_mass = window_mass_.data();
}

void sketch_context::build(const token_selector& selector) {
  index_bytes_ = selector.index_bytes(query_.layer, query_.kv_head);
  indexes_ = aligned_array<std::byte>(index_bytes_ * entries_.size());
  const std::size_t tile = std::size_t{tile_tokens} * head_dim_;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::byte* index = indexes_.data() + i * index_bytes_;
    selector.index_tile({.keys = keys_.data() + i * tile,
                         .values = values_.data() + i * tile,
                         .segment_mean = nullptr,
                         .layer = query_.layer,
                         .kv_head = query_.kv_head},
                        index);
    entries_[i].index = index;
  }
}

void sketch_context::set_whole(const std::vector<std::uint32_t>& positions) {
  for (tile_entry& entry : entries_) {
    entry.whole = false;
  }
  for (const std::uint32_t position : positions) {
    entries_.at(position).whole = true;
  }
}

std::unique_ptr<sketch_selection> sketch_context::begin(const token_selector& selector) const {
  auto begun = selector.begin(entries_, query_);
  auto* sketch = dynamic_cast<sketch_selection*>(begun.get());
  if (sketch == nullptr) {
    throw std::bad_cast();
  }
  begun.release();
  return std::unique_ptr<sketch_selection>(sketch);
}

sketch_context random_context(std::uint32_t head_dim, std::uint32_t heads, std::size_t tiles,
                              float spread, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> mean(head_dim);
  for (float& x : mean) {
    x = normal(random);
  }
  const std::size_t size = tiles * tile_tokens * head_dim;
  std::vector<float> keys(size);
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    keys[i] = normal(random) + mean[i % head_dim];
    values[i] = normal(random) + 0.5f;
  }
  std::vector<float> queries(std::size_t{heads} * head_dim);
  for (float& x : queries) {
    x = spread * normal(random);
  }
  return {head_dim, std::move(keys), std::move(values), std::move(queries)};
}

sketch_context golden_context(const golden::context_set& set) {
  sketch_context context(set.D, golden::widened(set.K), golden::widened(set.V),
                         golden::widened(set.Q));
  for (std::size_t i = 0; i < set.nb; ++i) {
    context.entries()[i].number = set.tile[i];
    context.entries()[i].sequence = set.seq[i];
  }
  context.query().window_mass = set.win64.data();
  context.query().layer = set.layer;
  context.query().kv_head = set.kv_head;
  return context;
}

selector_config sketch_options(std::uint32_t ppm, std::uint32_t bits, estimator_kind estimator) {
  selector_config options;
  options.kind = selector_kind::sketch;
  options.budget_ppm = ppm;
  options.bits = bits;
  options.estimator = estimator;
  return options;
}

}  // namespace kvtier::lsh::test
