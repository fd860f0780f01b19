#include "lsh/term_directions.hpp"

#include <algorithm>
#include <cmath>

namespace kvtier::lsh {
namespace {

constexpr double fewest = 4.0, most = 24.0;
constexpr std::size_t least_terms = 3;

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t d = 0; d < a.size(); ++d) {
    sum += double{a[d]} * double{b[d]};
  }
  return sum;
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
    sizes2.push_back(dot(term.z, term.z));
  }
  double shared = 0.0, all = 0.0;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const double product = terms[i].variance * terms[j].variance;
      const double inner = dot(terms[i].z, terms[j].z);
      shared += product * inner * inner / (sizes2[i] * sizes2[j]);
      all += product;
    }
  }
  const double directions = all / shared;
  return directions >= fewest     ? std::min(directions, most)
         : std::isnan(directions) ? usual_directions
                                  : fewest;
}

double hidden_bias(double directions) { return 1.5 / std::sqrt(directions); }

}  // namespace kvtier::lsh
