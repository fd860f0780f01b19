#include "tools/eval/log_axis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvtier::eval {
namespace {

constexpr std::array<int, 3> mantissas = {1, 2, 5};
constexpr double zero_place = 0.08;  // of an axis that shows zero
constexpr double margin = 0.04;      // beyond the values, of their span

int decade_of(int step) noexcept { return step >= 0 ? step / 3 : -((2 - step) / 3); }

int mantissa_of(int step) noexcept {
  return mantissas[static_cast<std::size_t>(step - 3 * decade_of(step))];
}

double log_of(int step) noexcept { return decade_of(step) + std::log10(mantissa_of(step)); }

/// The last step that is not above `value`; rounding must not push 0.05 below its own tick.
int step_below(double value) noexcept {
  const double log = std::log10(value) + 1e-9;
  int step = 3 * static_cast<int>(std::floor(log));
  while (log_of(step + 1) <= log) {
    ++step;
  }
  return step;
}

int step_above(double value) noexcept {
  const int below = step_below(value);
  return log_of(below) >= std::log10(value) - 1e-9 ? below : below + 1;
}

}  // namespace

log_axis::log_axis(std::span<const double> values, std::size_t most_labels) {
  cover(values);
  make_ticks(std::max<std::size_t>(most_labels, 2));
}

void log_axis::cover(std::span<const double> values) {
  double low = most, high = least;
  for (const double value : values) {
    if (std::isfinite(value) && value < least) {
      zero_share_ = zero_place;
    } else if (std::isfinite(value)) {
      low = std::min(low, value);
      high = std::max(high, std::min(value, most));
    }
  }
  if (low > high) {  // no value: a decade that looks like the usual ones
    low = 0.1;
    high = 1.0;
  }
  first_ = step_above(low);
  last_ = step_below(high);
  if (last_ - first_ < 1) {
    first_ = step_below(low);
    last_ = std::max(step_above(high), first_ + 1);
  }
  from_ = std::min(std::log10(low), log_of(first_));
  to_ = std::max(std::log10(high), log_of(last_));
  const double beyond = margin * (to_ - from_);
  from_ -= beyond;
  to_ += beyond;
}

void log_axis::make_ticks(std::size_t most_labels) {
  const auto total = static_cast<std::size_t>(last_ - first_) + 1;
  const std::size_t decades = total / 3 + 1;
  const auto stride = static_cast<int>((decades + most_labels - 1) / most_labels);
  if (has_zero()) {
    ticks_.push_back({0, 0, 0.0, true});
  }
  for (int step = first_; step <= last_; ++step) {
    const int decade = decade_of(step), mantissa = mantissa_of(step);
    const bool on_stride = mantissa == 1 && decade % stride == 0;
    const bool labelled = total <= most_labels || on_stride;
    if (labelled || stride == 1) {
      ticks_.push_back({mantissa, decade, place(mantissa * std::pow(10.0, decade)), labelled});
    }
  }
}

double log_axis::place(double value) const noexcept {
  if (value < least) {
    return 0.0;
  }
  const double share = std::clamp((std::log10(value) - from_) / (to_ - from_), 0.0, 1.0);
  return zero_share_ + (1.0 - zero_share_) * share;
}

double log_axis::from() const noexcept { return std::pow(10.0, from_); }
double log_axis::to() const noexcept { return std::pow(10.0, to_); }

std::string tick_text(const log_axis::tick& tick, bool percent) {
  const char* const unit = percent ? "%" : "";
  const int exponent = tick.exponent + (percent ? 2 : 0);
  if (tick.mantissa == 0) {
    return "0";
  }
  if (exponent < -4 || exponent > 5) {
    return fmt::format("{}e{}{}", tick.mantissa, exponent, unit);
  }
  return fmt::format("{:.{}f}{}", tick.mantissa * std::pow(10.0, exponent), std::max(0, -exponent),
                     unit);
}

}  // namespace kvtier::eval
