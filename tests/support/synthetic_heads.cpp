#include "tests/support/synthetic_heads.hpp"

#include <cmath>

namespace kvtier::test {
namespace {

/// Sums of exponentials relative to `top`.
struct softmax_sums {
  double top = -1e300;
  double den = 0.0;
  std::vector<double> num;
};

void add(softmax_sums& sums, const synthetic_head& data, std::uint32_t head,
         const std::vector<float>& keys, const std::vector<float>& values) {
  const std::size_t dim = data.head_dim;
  sums.num.resize(dim, 0.0);
  for (std::size_t i = 0; i < keys.size() / dim; ++i) {
    double logit = 0.0;
    for (std::size_t d = 0; d < dim; ++d) {
      logit += double{data.queries[head * dim + d]} * double{keys[i * dim + d]};
    }
    logit /= std::sqrt(static_cast<double>(dim));
    if (logit > sums.top) {
      const double keep = std::exp(sums.top - logit);
      sums.den *= keep;
      for (double& x : sums.num) {
        x *= keep;
      }
      sums.top = logit;
    }
    const double weight = std::exp(logit - sums.top);
    sums.den += weight;
    for (std::size_t d = 0; d < dim; ++d) {
      sums.num[d] += weight * double{values[i * dim + d]};
    }
  }
}

attended_head finish(softmax_sums sums) {
  for (double& x : sums.num) {
    x /= sums.den;
  }
  return {sums.num, sums.top + std::log(sums.den)};
}

}  // namespace

synthetic_head make_synthetic_head(eval::synthetic_kind kind, std::uint32_t tokens,
                                   std::uint32_t head_dim, std::uint64_t seed) {
  const eval::head_case made = eval::make_synthetic_case({kind, tokens, head_dim, seed});
  const auto split = [&](const std::vector<float>& all, std::vector<float>& rest,
                         std::vector<float>& window) {
    const auto first = all.begin() + std::ptrdiff_t{eval::synthetic_sinks} * head_dim;
    const auto last = all.end() - std::ptrdiff_t{eval::synthetic_recent} * head_dim;
    rest.assign(first, last);
    window.assign(all.begin(), first);
    window.insert(window.end(), last, all.end());
  };
  synthetic_head parts;
  parts.head_dim = head_dim;
  split(made.keys, parts.keys, parts.window_keys);
  split(made.values, parts.values, parts.window_values);
  parts.queries = made.queries.front().values;
  return parts;
}

attended_head attend_window(const synthetic_head& data, std::uint32_t head) {
  softmax_sums sums;
  add(sums, data, head, data.window_keys, data.window_values);
  return finish(sums);
}

attended_head attend_all(const synthetic_head& data, std::uint32_t head) {
  softmax_sums sums;
  add(sums, data, head, data.window_keys, data.window_values);
  add(sums, data, head, data.keys, data.values);
  return finish(sums);
}

}  // namespace kvtier::test
