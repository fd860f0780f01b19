#include "tests/lsh/magic_pig.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>

#include "cpu/element.hpp"

namespace kvtier::test {

magic_pig::magic_pig(const lsh_context& context, const selector_config& options)
    : context_(context),
      options_(options),
      dim_(context.options().head_dim),
      shape_{dim_, options.hash_bits, options.hash_tables},
      cache_(shape_, options.rotation_seed, options.shared_planes),
      planes_(cache_.of(context.query.layer, context.query.kv_head)),
      tables_(options.hash_tables) {
  for (std::size_t token = 0; token < context.tokens(); ++token) {
    const std::vector<float> key = centred(token);
    for (std::uint32_t table = 0; table < shape_.tables; ++table) {
      tables_[table][code(key.data(), table)].push_back(token);
    }
  }
}

std::vector<bool> magic_pig::used(std::size_t head) const {
  std::vector<int> collisions(context_.tokens(), 0);
  for (std::uint32_t table = 0; table < shape_.tables; ++table) {
    const auto bucket = tables_[table].find(code(query(head), table));
    if (bucket != tables_[table].end()) {
      for (const std::size_t token : bucket->second) {
        ++collisions[token];
      }
    }
  }
  std::vector<bool> twice(collisions.size());
  std::transform(collisions.begin(), collisions.end(), twice.begin(),
                 [](int count) { return count >= 2; });
  return twice;
}

double magic_pig::odds(std::size_t head, std::size_t token) const {
  const std::vector<float> key = centred(token);
  const double lengths =
      std::sqrt(dot(key.data(), key.data())) * std::sqrt(dot(query(head), query(head)));
  const double theta = std::acos(std::clamp(dot(query(head), key.data()) / lengths, -1.0, 1.0));
  if (options_.query_aware) {
    return aware_odds(head, theta);
  }
  const double tables = shape_.tables;
  const double power = std::pow(1.0 - theta / std::numbers::pi, shape_.bits);
  return 1.0 - std::pow(1.0 - power, tables) - tables * power * std::pow(1.0 - power, tables - 1);
}

head_totals magic_pig::estimate(std::size_t head) const {
  head_totals totals{context_.exact()[head].reference, 0.0, std::vector<double>(dim_, 0.0)};
  const std::vector<bool> uses = used(head);
  for (std::size_t token = 0; token < context_.tokens(); ++token) {
    if (!uses[token]) {
      continue;
    }
    const double weight =
        std::exp(context_.logit(head, token) - totals.reference) / odds(head, token);
    totals.den += weight;
    for (std::size_t d = 0; d < dim_; ++d) {
      totals.num[d] += weight * double{context_.rows.values[token * dim_ + d]};
    }
  }
  return totals;
}

const float* magic_pig::query(std::size_t head) const {
  return context_.queries.data() + head * dim_;
}

double magic_pig::dot(const float* a, const float* b) const {
  return std::inner_product(a, a + dim_, b, 0.0, std::plus<>(),
                            [](float x, float y) { return double{x} * double{y}; });
}

/// In fp32 and in order, so that a product near zero has the sign that the library gives it.
float magic_pig::product(const float* x, std::size_t plane) const {
  const std::size_t column = plane / lsh::plane_block * dim_ * lsh::plane_block;
  float sum = 0.0f;
  for (std::size_t d = 0; d < dim_; ++d) {
    const std::size_t at = column + d * lsh::plane_block + plane % lsh::plane_block;
    sum += float_from_bf16(planes_[at]) * x[d];
  }
  return sum;
}

std::uint32_t magic_pig::code(const float* x, std::uint32_t table) const {
  std::uint32_t bits = 0;
  for (std::uint32_t j = 0; j < shape_.bits; ++j) {
    bits |= (product(x, std::size_t{table} * shape_.bits + j) > 0.0f ? 1u : 0u) << j;
  }
  return bits;
}

std::vector<float> magic_pig::centred(std::size_t token) const {
  const lsh::tile_content tile = context_.content(token / lsh::tile_tokens);
  std::vector<float> key(dim_);
  for (std::size_t d = 0; d < dim_; ++d) {
    key[d] = context_.rows.keys[token * dim_ + d] -
             (tile.segment_mean != nullptr ? tile.segment_mean[d] : 0.0f);
  }
  return key;
}

double magic_pig::aware_odds(std::size_t head, double theta) const {
  double none = 1.0, one = 0.0, more = 0.0;
  const double norm = std::sqrt(dot(query(head), query(head)));
  for (std::uint32_t table = 0; table < shape_.tables; ++table) {
    double match = 1.0;
    for (std::uint32_t j = 0; j < shape_.bits; ++j) {
      const double m =
          std::fabs(double{product(query(head), std::size_t{table} * shape_.bits + j)});
      match *= 0.5 * std::erfc(-m / std::tan(theta) / norm / std::numbers::sqrt2);
    }
    more += one * match;
    one = one * (1.0 - match) + none * match;
    none *= 1.0 - match;
  }
  return more;
}

}  // namespace kvtier::test
