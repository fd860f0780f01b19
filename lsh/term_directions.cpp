#include "lsh/term_directions.hpp"

#include <algorithm>
#include <cmath>

#include "lsh/dot.hpp"

namespace kvtier::lsh {
namespace {

constexpr double fewest = 4.0, most = 24.0;
constexpr std::size_t least_terms = 3;

double product(const direction_term& a, const direction_term& b) {
  return double{dot(a.z.data(), b.z.data(), a.z.size())};
}

}  // namespace

void heaviest_terms::offer(const term_place& term) {
  if (!(term.variance > 0.0 && std::isfinite(term.variance))) {
    return;
  }
  if (terms_.size() == most_direction_terms) {
    if (!(term < terms_.back())) {
      return;
    }
    terms_.pop_back();
  }
  terms_.insert(std::upper_bound(terms_.begin(), terms_.end(), term), term);
}

double directions_of(std::span<const direction_term> terms) {
  if (terms.size() < least_terms) {
    return usual_directions;
  }
  std::vector<double> sizes2;
  for (const direction_term& term : terms) {
    sizes2.push_back(product(term, term));
  }
  double shared = 0.0, all = 0.0;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const double weight = terms[i].variance * terms[j].variance;
      const double inner = product(terms[i], terms[j]);
      shared += weight * (inner / sizes2[i]) * (inner / sizes2[j]);
      all += weight;
    }
  }
  const double directions = all / shared;
  return directions >= fewest     ? std::min(directions, most)
         : std::isnan(directions) ? usual_directions
                                  : fewest;
}

double hidden_bias(double directions) { return 1.5 / std::sqrt(directions); }

}  // namespace kvtier::lsh
