/// Which offloaded tokens attention reads: the configuration of a selector.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvtier {

enum class selector_kind : std::uint8_t {
  full,    ///< every offloaded token, exactly; the yardstick of all others
  none,    ///< offloaded tokens are ignored
  topk,    ///< those with the largest exact weights: reads every key, a baseline
  sketch,  ///< a sample drawn by rotated-code sketches, the rest estimated
};

/// How unread tokens enter the output of `sketch`.
enum class estimator_kind : std::uint8_t {
  shrink,  ///< by their estimate, corrected by the sample as far as the sample supports it
  ht,      ///< only through the weights 1/pi of read ones (Horvitz-Thompson): strictly unbiased
};

struct selector_config {
  selector_kind kind = selector_kind::full;
  /// topk, sketch: rows to read per KV head and query token, in millionths of the offloaded indexed
  /// tokens; 1 to 1,000,000.
  std::uint32_t budget_ppm = 20'000;
  std::uint32_t bits = 2;  ///< sketch: bits per rotated coordinate, 1 or 2
  estimator_kind estimator = estimator_kind::shrink;  ///< sketch
  /// sketch: seed of the rotation. Belongs to the model: indexes of different rotations do not mix.
  std::uint32_t rotation_seed = 1;

  bool operator==(const selector_config&) const = default;
};

/// "full", "none", "topk" or "sketch", the last two with options after a colon, in any order:
/// "topk:budget=0.02", "sketch:budget=0.02,bits=2,estimator=shrink". The budget is a fraction in
/// [0.000001, 1]. Throws std::invalid_argument that names the text, the place and what is known.
selector_config parse_selector(std::string_view text);
/// The text that parses to `selector`, all options of its kind included. Throws
/// std::invalid_argument if a value is not one of its enumeration.
std::string to_string(const selector_config& selector);

}  // namespace kvtier
