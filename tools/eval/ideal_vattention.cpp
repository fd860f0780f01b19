#include "tools/eval/ideal_vattention.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "lsh/token_selector.hpp"

namespace kvtier::eval {
namespace {

/// Upper 95 % quantile of F(16, inf).
constexpr double f_quantile = 1.6435;

struct token_terms {
  std::vector<double> largest_share;          // [tokens] of the mass, over the heads
  std::vector<std::vector<double>> variance;  // [heads][tokens] (p |v - o| / |o|)^2
};

token_terms terms_of(const stored_case& stored, const judged_query& judged) {
  const std::uint32_t dim = stored.data().head_dim;
  const std::size_t tokens = judged.tiles * lsh::tile_tokens;
  const float* values = stored.tile_values(0);
  token_terms made{std::vector<double>(tokens, 0.0), {}};
  for (std::size_t head = 0; head < judged.exact.size(); ++head) {
    const std::vector<double>& o = judged.exact[head].o;
    const double size2 = std::inner_product(o.begin(), o.end(), o.begin(), 0.0);
    std::vector<double> variance(tokens);
    for (std::size_t token = 0; token < tokens; ++token) {
      const double share = std::exp(double{judged.logits[head][token]} - judged.exact[head].lse);
      double distance2 = 0.0;
      for (std::size_t d = 0; d < dim; ++d) {
        const double apart = double{values[token * dim + d]} - o[d];
        distance2 += apart * apart;
      }
      variance[token] = share * share * distance2 / std::max(size2, 1e-300);
      made.largest_share[token] = std::max(made.largest_share[token], share);
    }
    made.variance.push_back(std::move(variance));
  }
  return made;
}

}  // namespace

double ideal_vattention_rows(const stored_case& stored, const judged_query& judged,
                             double epsilon) {
  const token_terms terms = terms_of(stored, judged);
  const std::size_t tokens = terms.largest_share.size();
  std::vector<std::size_t> order(tokens);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return terms.largest_share[a] > terms.largest_share[b];
  });
  // From the back: with `top` tokens taken, the rest's variance is a sum over the others.
  std::vector<double> rest(terms.variance.size(), 0.0);
  double best = static_cast<double>(tokens);
  for (std::size_t top = tokens; top-- > 0;) {
    double probability = 0.0;
    for (std::size_t head = 0; head < rest.size(); ++head) {
      rest[head] += terms.variance[head][order[top]];
      const double needed = f_quantile * rest[head];
      probability = std::max(probability, needed / (needed + epsilon * epsilon));
    }
    const double rows = static_cast<double>(top) + probability * static_cast<double>(tokens - top);
    best = std::min(best, rows);
  }
  return best / static_cast<double>(tokens);
}

}  // namespace kvtier::eval
