/// An engine without a model: drives a runtime with seeded q, k, v and checks every output against
/// float64 attention over what the sequence's history says.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/kvtier.hpp"

namespace kvtier::test {

/// The engine's own record of one sequence: token i at position i has k, v, q that are functions of
/// (tokens[i], i, layer), so that a fork's shared prefix has the same bytes.
struct toy_sequence {
  kvtier::sequence handle;
  std::vector<std::uint64_t> tokens;
};

class toy_engine {
 public:
  /// `tolerance`: largest accepted |o - reference|, values being normal with deviation 1.
  toy_engine(runtime& target, std::uint64_t seed, double tolerance);

  struct request {
    toy_sequence* target = nullptr;
    std::uint32_t tokens = 1;
    bool exact = false;  ///< by request, whatever the selector
  };

  /// One attended query token of one layer.
  struct output {
    const toy_sequence* target = nullptr;
    std::uint64_t position = 0;
    std::uint32_t layer = 0;
    const float* o = nullptr;                  ///< [query_heads][head_dim]
    const gpu::row_report* reports = nullptr;  ///< [query_heads]
  };

  /// Admits (waiting for room), attends every layer and ends one step; returns what begin_step or
  /// attend answered when it was neither ok nor retry. Reports wrong outputs as test failures.
  status run(const std::vector<request>& requests);

  /// Checks only every n-th query token of a step (the reference is quadratic); 0 = none.
  void check_every(std::uint32_t n) { check_every_ = n; }
  /// From now on new tokens have K and V that are not numbers: whatever they take part in shows it.
  /// Their own outputs are not checked.
  void poison(bool on) { poison_ = on; }
  /// Shown every output, in order, before it is checked.
  void observe(std::function<void(const output&)> observer) { observer_ = std::move(observer); }
  /// Float64 attention over the whole history: [query_heads][head_dim]; `lse` (may be null) of the
  /// first head.
  std::vector<double> reference(const toy_sequence& target, std::uint32_t layer,
                                std::uint64_t position, double* lse) const;
  std::uint64_t retries() const { return retries_; }
  /// Waits until the device is done with all steps so far and has let go of what they pinned.
  void settle() { stream_->synchronize(); }

  /// Fills `count` values of the vector `kind` ('q', 'k' or 'v') of a token in a layer.
  void fill(char kind, std::uint64_t token, std::uint64_t position, std::uint32_t layer,
            std::size_t count, float* out) const;

 private:
  void check(const toy_sequence& target, std::uint32_t layer, std::uint64_t position,
             const float* o, double lse) const;

  runtime& runtime_;
  const std::uint64_t seed_;
  const double tolerance_;
  std::uint32_t check_every_ = 1;
  std::function<void(const output&)> observer_;
  std::uint64_t next_token_ = 1;
  bool poison_ = false;
  std::uint64_t retries_ = 0;
  std::unique_ptr<gpu::stream> stream_;
};

}  // namespace kvtier::test
