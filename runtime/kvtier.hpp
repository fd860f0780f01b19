/// kvtier: attention over KV caches that do not fit on the device.
///
/// runtime/ is the engine: sequences, the directory of extents, the tier manager, step plans and
/// hybrid attention. This header is its public API. May depend on: gpu/, cpu/, storage/, lsh/.
///
/// Use: open a runtime, create sequences, and per step `begin_step`, `attend` once per layer in
/// order, `end`. The library writes nothing to stdout or stderr, installs no signal handler, has no
/// global state and never aborts on input. Configuration errors throw std::invalid_argument or
/// std::runtime_error with the value and the remedy; data paths return `status`.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.hpp"
#include "runtime/config.hpp"
#include "runtime/kv_shape.hpp"
#include "runtime/measure_head_bits.hpp"
#include "runtime/metrics.hpp"
#include "storage/status.hpp"

namespace kvtier {

class runtime;

/// What was lost and why; the caller truncates to the longest valid prefix and recomputes from
/// there, or fails this sequence.
struct lost_error {
  std::uint64_t sequence = 0;
  std::uint32_t layer = 0;
  std::uint64_t first_token = 0, last_token = 0;  ///< [first, last)
  std::string cause;
};

/// (token, KV head) rows of full layers, summed over query tokens.
struct row_counters {
  std::uint64_t offloaded = 0;    ///< rows that the steps' plans left off the device
  std::uint64_t loaded = 0;       ///< of these, rows read: counted at the load
  std::uint64_t keys_scored = 0;  ///< exact keys that a selector read to choose (topk), apart

  /// loaded / offloaded; 1 when nothing was offloaded.
  double attended_fraction() const noexcept;
};

/// Error bounds of the merged outputs, over (layer, query head, query token) rows of steps that
/// use the selector. Counted when the device has finished a layer, so a little after `attend`.
struct error_counters {
  std::uint64_t rows = 0;       ///< attended with the selector while tokens were offloaded
  std::uint64_t certified = 0;  ///< of these, rows whose bound holds as stated
  double bound_sum = 0.0;       ///< of certified rows: 95 % bounds of |o^ - o| / |o|
  double bound_max = 0.0;
  std::uint64_t estimated = 0;  ///< rows with a finite bound, certified or not
  double estimate_sum = 0.0;    ///< of these: their bounds, as figures
  double shrink_sum = 0.0;      ///< of these: the shrink factor beta

  /// 0 when nothing was sampled; NaN when nothing could be certified.
  double mean_bound() const noexcept;
  /// Of all rows with a finite bound, whether certified or not; 0 when nothing was sampled, NaN
  /// when no row has one.
  double mean_estimate() const noexcept;
  double mean_shrink() const noexcept;  ///< 0 when no row has an estimate
  void add(const error_counters& other) noexcept;
};

struct sequence_options {
  /// The sequence's final length, prompt and new tokens together: room for it is reserved across
  /// the tiers, so that steps of one token can always be placed in the end. What is reserved is
  /// room in all; the last, open extent of every sequence lies on the device, so for n sequences
  /// that are to go on, max_step_tokens(n, max_tokens) must not be 0.
  std::uint64_t max_tokens = 0;
};

/// One context. Move-only handle; destroying it releases its blocks (shared ones when the last fork
/// goes). Not thread-safe itself; different sequences may be used from different threads. Must not
/// outlive its runtime.
class sequence {
 public:
  struct state;

  sequence() noexcept;
  explicit sequence(std::unique_ptr<state> handle) noexcept;
  ~sequence();
  sequence(sequence&&) noexcept;
  sequence& operator=(sequence&&) noexcept;
  sequence(const sequence&) = delete;
  sequence& operator=(const sequence&) = delete;

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  std::uint64_t id() const noexcept;
  /// Tokens whose KV is stored, steps that ended included.
  std::uint64_t length() const noexcept;
  /// Of all steps of this sequence (a fork starts at zero).
  row_counters rows() const noexcept;
  /// Likewise; waits for the device to finish the steps that have ended.
  error_counters errors() const;

  state* get() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<state> handle_;
};

/// One sequence's part in a step.
struct step_request {
  sequence* target = nullptr;
  std::uint32_t tokens = 1;  ///< new tokens, at least 1
  /// Attend every offloaded token whatever the selector (how a shared prefix is read). Otherwise
  /// the selector decides, and `tokens` is limited by max_sampled_tokens.
  bool exact = false;
};

/// Activations of one layer, device pointers, rows of all requests one after another (in the order
/// of begin_step; `tokens` is their sum). Read and written in the order of the stream that attend
/// is given, so they may be reused on that stream without waiting.
struct attend_io {
  const void* q = nullptr;  ///< [tokens][query_heads][head_dim], shape.element
  const void* k = nullptr;  ///< [tokens][kv_heads][head_dim], shape.element
  const void* v = nullptr;  ///< same
  void* o = nullptr;        ///< [tokens][query_heads][head_dim], o_element
  element_type o_element = element_type::bf16;
  float* lse = nullptr;  ///< [tokens][query_heads] natural log, or null
  /// [tokens][query_heads] how well each row is known, or null. Written like `o`.
  gpu::row_report* report = nullptr;
};

/// A step that was admitted: everything that all layers can need is reserved. Move-only; destroying
/// it without `end` abandons it: the sequences keep their old length. Used from one thread. Must
/// not outlive its sequences, its stream or its runtime.
class step {
 public:
  struct state;

  step() noexcept;
  explicit step(std::unique_ptr<state> handle) noexcept;
  ~step();
  step(step&&) noexcept;
  step& operator=(step&&) noexcept;
  step(const step&) = delete;
  step& operator=(const step&) = delete;

  explicit operator bool() const noexcept { return handle_ != nullptr; }

  /// Appends k and v of `layer` and attends q over the whole context, causally. Layers in order,
  /// each once, all on the same stream (else rejected). `io.o` is written in the order of `stream`;
  /// where tokens are offloaded the call may block until `q` is there and host rows and disk tiles
  /// are attended; it does not wait for `io.o`. Returns lost (see `lost()`) or io_error (the device
  /// failed; the reason goes to the log), after which the step can only be destroyed; rejected for
  /// null pointers (but `lse`) or arguments out of order, and nothing has changed then.
  status attend(std::uint32_t layer, const attend_io& io, gpu::stream& stream);

  /// Makes the new tokens part of their sequences. All layers must have been attended, else
  /// rejected: attend the others, or destroy the step. Does not wait for `stream`.
  status end();

  /// Set after attend returned lost.
  const std::optional<lost_error>& lost() const noexcept;

 private:
  std::unique_ptr<state> handle_;
};

/// Bytes a tier holds now and at most held, and its cap.
struct tier_usage {
  std::uint64_t bytes = 0, peak_bytes = 0, cap_bytes = 0;
};

struct runtime_stats {
  tier_usage device, host, disk;  ///< slots in use, rings and metadata included
  row_counters rows;              ///< of all sequences
  error_counters errors;          ///< of all sequences
  std::uint64_t index_bytes = 0;  ///< token indexes in use; inside `host`
  std::uint64_t disk_read_bytes = 0, disk_written_bytes = 0;
  std::uint64_t h2d_bytes = 0, d2h_bytes = 0;
  std::uint64_t steps = 0, step_retries = 0;
};

/// Thread-safe but for what sequence and step say. At most one step per sequence at a time.
class runtime final : public metrics_source {
 public:
  /// Validates the configuration, opens the device and preallocates all tiers.
  static std::unique_ptr<runtime> open(config options);
  ~runtime() override;

  /// rejected: more than the tiers hold in all; retry: not before other sequences have gone.
  status create_sequence(const sequence_options& options, sequence* out);

  /// A sequence that starts with `parent`'s first `tokens` tokens, at most its length, and grows on
  /// its own (copy on write). Whole runs of fork_alignment() tokens are shared; what is left is
  /// copied into a tail of its own, which blocks until the copy is done and, where the parent's
  /// lies on disk, read. rejected: longer than the parent, in a step, more than `options` allow,
  /// sliding layers have let go of what token `tokens` sees, or no room for the copy in tiers that
  /// the parent alone fills; retry: no room now; lost, io_error: as
  /// for truncate. The reason of all but retry goes to the log, and there is no new sequence then.
  status fork(const sequence& parent, std::uint64_t tokens, const sequence_options& options,
              sequence* out);
  /// max(block_tokens, 64).
  std::uint32_t fork_alignment() const noexcept;

  /// Drops all but the first `tokens` tokens, at most the length (rejected drafts, an edited chat,
  /// a retry); the sequence goes on as if the others had never been there. Forks keep what they
  /// share. What lies past the cut is released; where the cut goes through tokens that are sealed,
  /// up to fork_alignment() of them per layer are copied into a new tail, from the device, host
  /// memory or disk. Blocks for that, and for the reports of earlier sampled steps. max_tokens
  /// stays.
  ///
  /// On anything but ok the sequence is as it was. rejected: in a step, longer than the sequence,
  /// sliding layers have let go of what token `tokens` sees, or no room for the copy in tiers that
  /// this sequence alone fills. retry: no device room for the copy, or no room to grow again since
  /// forks go on holding what is dropped; see wait_for_room. (A multiple of fork_alignment() needs
  /// no copy, so cutting there first makes room.) lost: tokens
  /// before the cut cannot be read back; a cut where they begin does without them. io_error: the
  /// device failed. The reason of all but retry goes to the log.
  status truncate(sequence& target, std::uint64_t tokens);

  /// Reserves everything that all layers of the step can need, or returns retry (nothing is
  /// touched, but room is being made: call again, see wait_for_room), rejected (can never be
  /// placed, no room in tiers that the step's own sequences fill, more than max_tokens, or a
  /// sequence that is in a step already) or lost (tokens of a sequence cannot be read back). The
  /// reason of the last two goes to the log.
  status begin_step(std::span<const step_request> requests, step* out);
  /// Blocks until some transfer has completed since the last call, at most `timeout`.
  void wait_for_room(std::chrono::milliseconds timeout);

  /// The most new tokens that a step of `sequences` sequences, each of at most `context` tokens,
  /// can have per sequence so that it can be placed when they are alone; 0 = not even one. In tiers
  /// that hold hardly more than these sequences, sliding layers may find no passing room for so
  /// many tokens near the end: begin_step rejects the step then, and a smaller one can be placed.
  std::uint32_t max_step_tokens(std::uint32_t sequences, std::uint64_t context) const;

  /// The most new tokens per sequence of a step of `sequences` sequences that uses the selector; 0
  /// = too many sequences. No limit (the largest number) where the selector draws nothing.
  std::uint32_t max_sampled_tokens(std::uint32_t sequences) const;

  /// Moves everything of an idle sequence that may move out of device memory (host first, then
  /// disk); returns at once. The next step uses it where it lies. rejected while the sequence is in
  /// a step; retry when some of it found no room below.
  status demote(const sequence& target);

  /// Lives as long as the runtime: its streams, events and buffers must go before.
  gpu::device& device() noexcept;
  const kv_shape& shape() const noexcept;
  std::string_view io_backend_name() const noexcept;
  /// Whether O_DIRECT holds on all disks; nullopt without disks.
  std::optional<bool> disk_direct() const;

  runtime_stats stats() const;
  void visit_metrics(metrics_visitor& visitor) const override;

  struct state;
  /// For the project's own tests: over parts made by hand.
  explicit runtime(std::unique_ptr<state> internals);

 private:
  std::unique_ptr<state> state_;
};

}  // namespace kvtier
