#include "lsh/simhash_odds.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvtier::lsh {
namespace {

constexpr double pi = std::numbers::pi;

/// The events so far: none came, exactly one, more. Sums of products of probabilities, so that
/// nothing cancels.
struct event_count {
  double none = 1.0;
  double one = 0.0;
  double more = 0.0;

  void add(double p) {
    more += one * p;
    one = one * (1.0 - p) + none * p;
    none *= 1.0 - p;
  }
};

double integer_power(double base, std::uint32_t exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent /= 2, base *= base) {
    power *= exponent % 2 != 0 ? base : 1.0;
  }
  return power;
}

double clamped(double cosine) {
  if (cosine < 1.0) {
    return std::max(cosine, -1.0);
  }
  return 1.0;  // of NaN too
}

/// ln Phi(x) by a table; below -12 a code has no chance, above 8 none to differ.
class log_normal_cdf {
 public:
  static const log_normal_cdf& instance() {
    static const log_normal_cdf one;
    return one;
  }

  double at(double x) const noexcept {
    const double place = (std::clamp(x, least, most) - least) * per_unit;
    const auto bin = std::min(static_cast<std::size_t>(place), bins - 1);
    const double part = place - static_cast<double>(bin);
    return values_[bin] + part * (values_[bin + 1] - values_[bin]);
  }

 private:
  static constexpr double least = -12.0;
  static constexpr double most = 8.0;
  static constexpr double per_unit = 256.0;
  static constexpr auto bins = static_cast<std::size_t>((most - least) * per_unit);

  log_normal_cdf() {
    for (std::size_t i = 0; i <= bins; ++i) {
      const double x = least + static_cast<double>(i) / per_unit;
      values_.push_back(std::log(0.5 * std::erfc(-x / std::numbers::sqrt2)));
    }
  }

  std::vector<double> values_;
};

/// Look-ups of a table of projected_odds, and its limits in bins.
constexpr std::size_t table_work = 98304;
constexpr std::size_t fewest_bins = 64;
constexpr std::size_t most_bins = 1024;
/// Lower than ln(least_odds), so that the curve has no kink above it.
constexpr double least_log = -80.0;

}  // namespace

double at_least_two_of(std::uint32_t tables, double p) {
  if (tables < 2) {
    return 0.0;
  }
  if (p >= 1.0) {
    return 1.0;
  }
  const double others = static_cast<double>(tables - 1);
  if (others * p < 0x1p-10) {
    // What is below cancels here. The sum over j >= 2 of C(L, j) p^j (1-p)^(L-j):
    const double pair = 0.5 * tables * others * p * p * std::exp((tables - 2.0) * std::log1p(-p));
    const double odds = p / (1.0 - p);
    const double third = (tables - 2.0) / 3.0 * odds;
    const double fourth = third * (tables - 3.0) / 4.0 * odds;
    const double fifth = fourth * (tables - 4.0) / 5.0 * odds;
    return pair * (1.0 + third + fourth + fifth);
  }
  return -std::expm1(others * std::log1p(-p) + std::log1p(others * p));
}

angle_odds::angle_odds(const simhash_shape& shape) : bits_(shape.bits) {
  const double width = std::numbers::sqrt2 / 2.0 / static_cast<double>(bins);
  for (std::size_t i = 0; i <= bins; ++i) {
    const double sine = static_cast<double>(i) * width;
    const double angle = 2.0 * std::asin(sine) / pi;  // of pi
    const double power = std::exp(bits_ * std::log1p(-angle));
    near_.push_back(static_cast<float>(at_least_two_of(shape.tables, power)));
    // At zero the limit: one step off is as near as interpolation sees it.
    const double off = i == 0 ? width * 0x1p-10 : sine;
    const double match = 2.0 * std::asin(off) / pi;
    const double ratio = at_least_two_of(shape.tables, integer_power(match, bits_)) /
                         integer_power(off * off, bits_);
    far_.push_back(static_cast<float>(ratio));
  }
}

double angle_odds::at(double cosine) const noexcept {
  const double c = clamped(cosine);
  const bool far = c < 0.0;
  const double square = 0.5 * (1.0 - std::fabs(c));
  const double place = std::sqrt(square) * (std::numbers::sqrt2 * static_cast<double>(bins));
  const auto bin = std::min(static_cast<std::size_t>(place), bins - 1);
  const double part = place - static_cast<double>(bin);
  const std::vector<float>& table = far ? far_ : near_;
  const double low = double{table[bin]};
  const double value = low + part * (double{table[bin + 1]} - low);
  return std::clamp(far ? value * integer_power(square, bits_) : value, least_odds, 1.0);
}

double projected_odds::exact(const simhash_shape& shape, const float* products, double norm,
                             double theta) {
  const log_normal_cdf& log_phi = log_normal_cdf::instance();
  const double scale = norm > 0.0 ? std::cos(theta) / std::sin(theta) / norm : 0.0;
  event_count collisions;
  for (std::uint32_t table = 0; table < shape.tables; ++table) {
    double log_match = 0.0;
    for (std::uint32_t j = 0; j < shape.bits; ++j) {
      const double product = std::fabs(double{products[std::size_t{table} * shape.bits + j]});
      log_match += log_phi.at(product * scale);
    }
    collisions.add(std::exp(log_match));
  }
  return collisions.more;
}

projected_odds::projected_odds(const simhash_shape& shape, const float* products, double norm) {
  const std::size_t bins = std::clamp(table_work / shape.planes(), fewest_bins, most_bins);
  step_ = pi / static_cast<double>(bins);
  // At the ends the limits would need: sin(theta) is not zero there in doubles, and the clamp of
  // log_phi does the rest.
  std::vector<double> logs;
  for (std::size_t i = 0; i <= bins; ++i) {
    const double theta = std::clamp(static_cast<double>(i) * step_, 1e-9, pi - 1e-9);
    const double odds = exact(shape, products, norm, theta);
    logs.push_back(odds > 0.0 ? std::max(std::log(odds), least_log) : least_log);
  }
  logs_.push_back(logs.front());  // even about zero
  logs_.insert(logs_.end(), logs.begin(), logs.end());
  logs_.push_back(2.0 * logs[bins] - logs[bins - 1]);
}

double projected_odds::at(double cosine) const noexcept {
  const double place = std::acos(clamped(cosine)) / step_;
  const std::size_t last = logs_.size() - 4;
  const auto bin = std::min(static_cast<std::size_t>(place), last);
  const double x = place - static_cast<double>(bin);
  // The cubic through four points (Catmull and Rom).
  const double* const y = logs_.data() + bin;
  const double slope0 = 0.5 * (y[2] - y[0]);
  const double slope1 = 0.5 * (y[3] - y[1]);
  const double rise = y[2] - y[1];
  const double value =
      y[1] +
      x * (slope0 + x * (3.0 * rise - 2.0 * slope0 - slope1 + x * (slope0 + slope1 - 2.0 * rise)));
  return std::clamp(std::exp(value), least_odds, 1.0);
}

}  // namespace kvtier::lsh
