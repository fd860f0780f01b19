/// Contexts with token indexes for the tests of the sketch selector.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "lsh/aligned_array.hpp"
#include "lsh/sketch_selector.hpp"
#include "lsh/token_selector.hpp"
#include "tests/lsh/sampler_golden.hpp"

namespace kvtier::lsh::test {

/// The tiles of one KV head and one query group, and a selector's indexes of them.
class sketch_context {
 public:
  /// fp32 keys and values [tiles * 64][head_dim], queries [heads][head_dim].
  sketch_context(std::uint32_t head_dim, std::vector<float> keys, std::vector<float> values,
                 std::vector<float> queries);

  /// Makes every tile's index with `selector`.
  void build(const token_selector& selector);
  void set_whole(const std::vector<std::uint32_t>& positions);

  std::size_t tiles() const noexcept { return entries_.size(); }
  std::vector<tile_entry>& entries() noexcept { return entries_; }
  const std::byte* index(std::size_t tile) const noexcept {
    return indexes_.data() + tile * index_bytes_;
  }
  std::size_t index_bytes() const noexcept { return index_bytes_; }
  selector_query& query() noexcept { return query_; }
  const std::vector<float>& keys() const noexcept { return keys_; }

  std::unique_ptr<sketch_selection> begin(const token_selector& selector) const;

 private:
  std::uint32_t head_dim_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<float> queries_;
  std::vector<std::int16_t> window_mass_;
  aligned_array<std::byte> indexes_;
  std::size_t index_bytes_ = 0;
  std::vector<tile_entry> entries_;
  selector_query query_;
};

/// Normal keys around a common mean, with logits of standard deviation `spread`.
sketch_context random_context(std::uint32_t head_dim, std::uint32_t heads, std::size_t tiles,
                              float spread, std::uint32_t seed);

/// A case of the golden vectors, whole tiles marked; indexes are not built.
sketch_context golden_context(const golden::context_set& set);

selector_config sketch_options(std::uint32_t ppm, std::uint32_t bits, estimator_kind estimator);

}  // namespace kvtier::lsh::test
