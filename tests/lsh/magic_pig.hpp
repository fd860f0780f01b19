/// MagicPIG as its paper has it, in float64: hash tables of postings, angles by acos, powers by
/// pow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "lsh/simhash_planes.hpp"
#include "tests/lsh/lsh_context.hpp"

namespace kvtier::test {

/// Of one KV head. With options.query_aware, probabilities given the query's products.
class magic_pig {
 public:
  /// `context` must outlive it, and its query stay.
  magic_pig(const lsh_context& context, const selector_config& options);

  /// [tokens] whether the head uses the token.
  std::vector<bool> used(std::size_t head) const;
  double odds(std::size_t head, std::size_t token) const;
  /// The sums over the tokens used, in units of exp(context.exact()[head].reference).
  head_totals estimate(std::size_t head) const;

 private:
  const float* query(std::size_t head) const;
  double dot(const float* a, const float* b) const;
  float product(const float* x, std::size_t plane) const;
  std::uint32_t code(const float* x, std::uint32_t table) const;
  std::vector<float> centred(std::size_t token) const;
  double aware_odds(std::size_t head, double theta) const;

  const lsh_context& context_;
  selector_config options_;
  std::uint32_t dim_;
  lsh::simhash_shape shape_;
  lsh::simhash_plane_cache cache_;
  const lsh::simhash_planes& planes_;
  std::vector<std::unordered_map<std::uint32_t, std::vector<std::size_t>>> tables_;
};

}  // namespace kvtier::test
