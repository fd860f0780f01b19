/// Judging selectors: draws over many cases, queries and seeds, and what their errors amount to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/task_arena.hpp"
#include "lsh/selector.hpp"
#include "tools/eval/judged_data.hpp"

namespace kvtier::eval {

/// How answers are made.
struct evaluation_setting {
  exact_window window;
  std::uint32_t seeds = 16;  ///< draws per query; of selectors that draw
  std::uint64_t seed = 0;    ///< the first one
  double whole_share = 0.0;  ///< share of the tiles, the oldest, that lie on disk
  /// Whether topp and lsh, which have no budget of their own, are driven to it.
  bool drive = true;
  /// Draws of a selector whose random numbers are in its index (lsh), for each costs an index.
  std::uint32_t most_indexes = 4;
};

/// Errors of one query head, |o^ - o| / |o|, over queries and seeds.
struct head_errors {
  std::string name;  ///< "0/kv0/h2": of the case with that number
  double mean_error = 0.0;
  double mean_bound = 0.0;  ///< NaN: there is none
  double coverage = 0.0;    ///< share of the draws whose error is below its bound; NaN
  double certified = 0.0;   ///< share of the draws that are certified
  double rows_fraction = 0.0;
};

/// One selector at one budget on one kind of data.
struct method_errors {
  std::string data;
  std::uint64_t tokens = 0;        ///< offloaded, of the largest context
  std::uint64_t asked_tokens = 0;  ///< of --tokens
  std::string asked;               ///< the selector as asked for
  std::string selector;            ///< with the options that it came to
  double budget = 0.0;             ///< asked for
  double rows_fraction = 0.0;
  double mean_error = 0.0, p50_error = 0.0, p95_error = 0.0, max_error = 0.0;
  double bias = 0.0;       ///< mean over queries and heads of |mean over seeds of o^ - o| / |o|
  double coverage = 0.0;   ///< of all draws with a bound; NaN: there is none
  double bound = 0.0;      ///< mean; NaN
  double certified = 0.0;  ///< share of the draws that are certified
  double certified_coverage = 0.0;  ///< NaN: no draw is
  double top1_missed = 0.0;         ///< share of the draws that left the heaviest token unread
  double disk_tiles = 0.0;          ///< whole tiles read per draw
  double met = 0.0;  ///< share of the draws whose error is below epsilon; NaN without it
  double vattention_rows = 0.0;  ///< rows an idealised vAttention reads for epsilon; NaN without
  double rounds = 1.0;           ///< of reading, with epsilon
  /// Of drifting queries, NaN otherwise: share of the rows and tiles of a draw that the step before
  /// read too, or one of the eight steps before; and tiles per draw that none of the eight read.
  double overlap = 0.0, overlap8 = 0.0, new_tiles = 0.0;
  /// NaN for faiss, which builds its own when it is first asked.
  double index_bytes_per_token = 0.0;  ///< and KV head
  double build_us_per_token = 0.0;
  std::uint32_t seeds = 1;
  std::vector<head_errors> heads;
};

/// Judges `options` at `budget`, a share of the offloaded tokens; kinds with a budget of their own
/// are set to it, whatever `options` say. Throws std::invalid_argument for what a selector refuses.
method_errors evaluate(const judged_data& data, selector_config options, double budget,
                       const evaluation_setting& setting, cpu::task_arena& arena);

}  // namespace kvtier::eval
