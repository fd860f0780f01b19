/// Over how many directions the error of a sample spreads, measured on its heaviest terms. Private
/// to lsh/.
///
/// The error is a sum of independent terms t z; its squared norm varies like a chi-squared of nu
/// degrees of freedom, 1/nu = sum over pairs of V_i V_j cos^2(z_i, z_j) / (sum of V)^2, V = c |z|^2
/// the terms' variances. Equal terms i = j make the part 1/n, which the bound has anyway; this is
/// the part of different ones. sampler.md, section 4, takes 16 throughout ("F with nu from the full
/// Gram matrix" is the alternative that it found better and too dear: these are 16 terms of some
/// hundred).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvtier::lsh {

/// Where nothing can be measured.
inline constexpr double usual_directions = 16.0;
/// Terms that are looked at.
inline constexpr std::size_t most_direction_terms = 16;

struct term_place {
  double variance = 0.0;  ///< c |z|^2
  std::size_t place = 0;  ///< what the caller finds it by; breaks ties

  friend bool operator<(const term_place& a, const term_place& b) {
    return a.variance != b.variance ? a.variance > b.variance : a.place < b.place;
  }
};

/// Keeps the most_direction_terms first ones of all that were offered, in order.
class heaviest_terms {
 public:
  /// Terms without variance, or with one that is no number, are left out.
  void offer(const term_place& term);
  std::span<const term_place> terms() const noexcept { return terms_; }

 private:
  std::vector<term_place> terms_;  // ascending by operator<
};

/// A term as a vector.
struct direction_term {
  double variance = 0.0;
  std::vector<float> z;  ///< [head_dim]
};

/// nu as above, between 4 and 24; usual_directions for fewer than three terms. (Values drawn at
/// random spread over 50 to 128 directions, but 16 terms cannot tell, and heads whose heavy rows
/// were not drawn look better than they are: with up to 64, coverage fell below 93 % in 8 of 45
/// cells.)
double directions_of(std::span<const direction_term> terms);

/// cb: the squared bias that the noise of |T|^2 may hide, in units of its variance V_T. That noise
/// has a deviation of sqrt(2 / nu) V_T, so this is about one of it. sampler.md has .25 throughout;
/// on the needle model, whose values have some ten directions, the bound then held for .80 of the
/// draws of single heads.
double hidden_bias(double directions);

}  // namespace kvtier::lsh
