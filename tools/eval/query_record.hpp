/// What the draws of one query gave.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tools/eval/judged_query.hpp"
#include "tools/eval/sampled_answer.hpp"

namespace kvtier::eval {

inline constexpr double not_known = std::numeric_limits<double>::quiet_NaN();

/// One head of one draw.
struct head_outcome {
  double error = 0.0;        ///< |o^ - o| / |o|
  double bound = not_known;  ///< NaN: there is none
  bool certified = false;
  bool missed = false;  ///< the heaviest token was offloaded and not read
};

struct draw_outcome {
  std::vector<head_outcome> heads;
  double rows_fraction = 0.0;  ///< of the offloaded tokens
  double disk_tiles = 0.0;
  double rounds = 1.0;
  /// What was read, ascending, where the next query follows on this one; empty otherwise.
  std::vector<std::uint32_t> rows, tiles;
};

class query_record {
 public:
  /// `keep`: whether to remember what was read.
  void add(const sampled_answer& given, const judged_query& judged, bool keep);

  const std::vector<draw_outcome>& draws() const noexcept { return draws_; }
  /// [heads] |mean of o^ - o| / |o|; before any draw empty.
  std::vector<double> bias(const judged_query& judged) const;

 private:
  std::vector<draw_outcome> draws_;
  std::vector<std::vector<double>> sums_;  // [heads][head_dim] of o^
};

}  // namespace kvtier::eval
