/// A logarithmic axis: where values lie on it, and its ticks at 1, 2 and 5.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace kvtier::eval {

/// Immutable, so safe to share between threads.
class log_axis {
 public:
  struct tick {
    int mantissa;  ///< 0 (the tick of zero), 1, 2 or 5
    int exponent;  ///< of ten
    double place;  ///< as place() has it
    bool labelled;
  };

  /// Over `values` and a little beyond, and so far that two ticks are on it at least; with at most
  /// `most_labels` labels, or 2. Values that are not finite have no part. What is below `least`,
  /// zero and less too, lies at a place of its own at the low end, which is there only if needed.
  log_axis(std::span<const double> values, std::size_t most_labels);

  static constexpr double least = 1e-12, most = 1e12;

  /// In [0, 1]; values beyond the axis lie at its ends. `value` must be finite.
  double place(double value) const noexcept;
  const std::vector<tick>& ticks() const noexcept { return ticks_; }
  /// The values at the ends, that of zero left aside.
  double from() const noexcept;
  double to() const noexcept;
  bool has_zero() const noexcept { return zero_share_ > 0.0; }

 private:
  void cover(std::span<const double> values);
  void make_ticks(std::size_t most_labels);

  double from_ = 0.0, to_ = 0.0;  // log10 of the ends
  int first_ = 0, last_ = 0;      // ticks, in steps, three a decade: 1, 2, 5
  double zero_share_ = 0.0;       // of the axis, below its first tick
  std::vector<tick> ticks_;
};

/// "0.05", or in per cent "5%".
std::string tick_text(const log_axis::tick& tick, bool percent);

}  // namespace kvtier::eval
