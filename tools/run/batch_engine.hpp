/// What the batch scheduler needs from below: contexts that can fork, and steps over several of
/// them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/status.hpp"

namespace kvtier::run {

/// One sequence of the engine; 0 is none.
using context_id = std::uint64_t;

/// New tokens of one context in a step.
struct step_part {
  context_id context = 0;
  std::uint64_t position = 0;            ///< of the first token: what the context holds already
  std::span<const std::int32_t> tokens;  ///< at least one; valid during the step
  bool exact = false;                    ///< attend every token whatever the selector
};

struct step_outcome {
  status outcome = status::ok;           ///< ok, retry, rejected, lost or io_error
  std::vector<std::int32_t> next;        ///< after ok: per part, the token with the largest logit
  std::optional<std::size_t> lost_part;  ///< after lost: whose data is gone, where known
  std::string cause;                     ///< after lost and io_error: one line
  /// After ok: [parts][vocabulary], the engine's until its next step; empty if it has none.
  std::span<const float> logits = {};
};

/// What an engine has counted so far.
struct engine_usage {
  std::uint64_t device_bytes = 0, host_bytes = 0, disk_bytes = 0;  ///< now
  std::uint64_t device_peak = 0, host_peak = 0, disk_peak = 0;     ///< the most so far
  std::uint64_t index_bytes = 0;  ///< token indexes now, inside host_bytes
};

/// Rows of all steps of a context, see row_counters.
struct row_usage {
  std::uint64_t offloaded = 0, loaded = 0, keys_scored = 0;

  void add(const row_usage& other) {
    offloaded += other.offloaded;
    loaded += other.loaded;
    keys_scored += other.keys_scored;
  }
};

/// Error bounds of a context's outputs, see error_counters.
struct error_usage {
  std::uint64_t rows = 0, certified = 0;
  double bound_sum = 0.0, bound_max = 0.0;
  std::uint64_t estimated = 0;
  double estimate_sum = 0.0, shrink_sum = 0.0;

  void add(const error_usage& other) {
    rows += other.rows;
    certified += other.certified;
    bound_sum += other.bound_sum;
    bound_max = std::max(bound_max, other.bound_max);
    estimated += other.estimated;
    estimate_sum += other.estimate_sum;
    shrink_sum += other.shrink_sum;
  }
};

/// Used from one thread.
class batch_engine {
 public:
  virtual ~batch_engine() = default;

  /// A new context that will hold at most `max_tokens`. ok, retry (others must go first) or
  /// rejected (never).
  virtual status create(std::uint64_t max_tokens, context_id* out) = 0;
  /// A context that starts with the first `tokens` of `parent`. Same results as create.
  virtual status fork(context_id parent, std::uint64_t tokens, std::uint64_t max_tokens,
                      context_id* out) = 0;
  virtual void release(context_id context) = 0;

  /// Prefixes are shared at multiples of this.
  virtual std::uint64_t fork_alignment() const = 0;
  /// New tokens per context that a step of `contexts` contexts of at most `length` tokens can have
  /// while no others are there; 0 = too many contexts.
  virtual std::uint32_t max_step_tokens(std::uint32_t contexts, std::uint64_t length) const = 0;
  /// New tokens per context of a step of `contexts` contexts that is not exact; 0 = too many.
  virtual std::uint32_t max_sampled_tokens(std::uint32_t contexts) const = 0;
  /// Runs one step. After anything but ok, no context has changed.
  virtual step_outcome step(std::span<const step_part> parts) = 0;
  /// After retry: waits until something may have become free, at most `timeout`.
  virtual void wait_for_room(std::chrono::milliseconds timeout) = 0;

  virtual engine_usage usage() const = 0;
  virtual row_usage rows(context_id context) const = 0;
  virtual error_usage errors(context_id context) const = 0;
};

}  // namespace kvtier::run
