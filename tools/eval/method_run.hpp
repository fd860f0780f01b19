/// One selector with given options over all cases of one kind of data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/task_arena.hpp"
#include "lsh/token_selector.hpp"
#include "tools/eval/evaluation.hpp"
#include "tools/eval/query_record.hpp"

namespace kvtier::eval {

/// Whether another seed gives another draw.
bool draws(selector_kind kind) noexcept;
/// Whether the random numbers are in the index (lsh: its hyperplanes), so that another draw needs
/// another index.
bool draws_index(selector_kind kind) noexcept;

/// Whether the queries are of successive steps over the same tokens (drifting queries).
bool are_successive(const head_case& data) noexcept;

class method_run {
 public:
  /// The arguments must outlive it.
  method_run(const judged_data& data, const selector_config& options,
             const evaluation_setting& setting, cpu::task_arena& arena);

  /// Answers every query with seeds [0, seeds). Once.
  void answer_all(std::uint32_t seeds);

  /// [case][query]
  const std::vector<std::vector<query_record>>& records() const noexcept { return records_; }
  /// CPU time of one index of each tile, and its bytes.
  double build_seconds() const noexcept { return build_seconds_; }
  std::size_t index_bytes() const noexcept { return index_bytes_; }

 private:
  std::unique_ptr<lsh::token_selector> selector(const selector_config& options,
                                                std::uint32_t seed) const;
  void answer_seeds(std::uint32_t first, std::uint32_t count);

  const judged_data& data_;
  const selector_config options_;
  std::vector<selector_config> case_options_;  ///< with the bits that sketch:bits=auto comes to
  const evaluation_setting& setting_;
  cpu::task_arena& arena_;
  std::vector<std::vector<query_record>> records_;
  double build_seconds_ = 0.0;
  std::size_t index_bytes_ = 0;
};

}  // namespace kvtier::eval
