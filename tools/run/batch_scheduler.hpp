/// The batch job: prompts in, greedy continuations out, shared prefixes prefilled once.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/run/batch_engine.hpp"

namespace kvtier::run {

struct batch_prompt {
  std::vector<std::int32_t> tokens;  ///< at least one
  std::uint32_t max_tokens = 1;      ///< new tokens, at least 1
};

enum class finish_reason : std::uint8_t {
  stop,         ///< a token that ends the text came; it is not part of the result
  length,       ///< max_tokens new tokens were made
  interrupted,  ///< the job was stopped; what is there is valid as far as it goes
  failed,       ///< see `error`
};

/// What became of one prompt. Seconds are wall time of the steps the prompt took part in, which it
/// shares with the others of its batch.
struct batch_result {
  finish_reason reason = finish_reason::failed;
  std::string error;           ///< one line, after failed
  bool runtime_fault = false;  ///< the error is the machine's (io, lost data), not the input's
  std::vector<std::int32_t> tokens;
  double prefill_seconds = 0.0;  ///< its shared prefix included in full
  double decode_seconds = 0.0;
  std::uint64_t shared_tokens = 0;  ///< leading tokens that were forked, not prefilled
  /// Of the steps that used the selector; of all, its shared prefix included, where it is exact.
  row_usage rows;
  error_usage errors;
  std::uint64_t device_peak = 0, host_peak = 0,
                disk_peak = 0;  ///< bytes of all tiers' users meanwhile
};

/// Totals of a job so far.
struct batch_progress {
  std::uint64_t prompts_done = 0, prompts = 0;
  std::uint64_t prefilled_tokens = 0;  ///< shared prefixes once
  std::uint64_t prefill_tokens = 0;    ///< to be prefilled in all, as planned
  std::uint64_t decoded_tokens = 0;
  double prefill_seconds = 0.0, decode_seconds = 0.0;  ///< of steps, each counted once
  std::uint64_t shared_prefixes = 0;
  std::uint64_t index_peak = 0;  ///< bytes of token indexes, the most after a step
};

struct batch_options {
  std::uint32_t max_batch = 32;       ///< contexts that prefill or decode at once, at least 1
  std::uint32_t prefill_chunk = 512;  ///< new tokens of a prefill step, all contexts together
  std::vector<std::int32_t> stop_tokens;
  /// The last so many tokens of every prompt (at least one, at most all) and all new ones are
  /// processed with the engine's selector. Those before are read exactly, and only they are shared.
  /// nullopt: the selector is exact, and nothing is set apart.
  std::optional<std::uint32_t> question_tokens;
  /// How long a step, or an admission while nothing runs, is asked for before it is made smaller.
  std::chrono::milliseconds shrink_after{500};
  /// How long before a prompt that cannot be made smaller is given up.
  std::chrono::milliseconds patience{30'000};
};

/// Last tokens of a prompt that it shares with no other.
std::uint32_t own_tokens(const batch_options& options);

/// Called between steps, on the thread of `run_batch`.
struct batch_callbacks {
  /// Every new token, one that ends the text included, and its logits as step_outcome has them.
  std::function<void(std::size_t prompt, std::int32_t token, std::span<const float> logits)> token;
  std::function<void(std::size_t prompt, const batch_result&)> finished;  ///< once per prompt
  std::function<void(const batch_progress&)> progress;                    ///< after every step
  std::function<bool()> stop;  ///< true ends the job: what is unfinished becomes `interrupted`
};

/// Runs all prompts.
///
/// Prefixes are shared at every level where prompts part (see plan_prefixes): a shared prefix is a
/// context of its own, forked from the next shorter one, prefilled, forked into what continues it,
/// and released when the last of these exists. The forest is walked depth first, so that only one
/// chain of shared prefixes is held at a time. Prompts are admitted in that order while `max_batch`
/// and the engine have room; those that are reading their prompt step together, then all that are
/// at their question, then all that decode, and a place that becomes free is given to the next one.
///
/// An engine that answers retry is asked again after wait_for_room; when that does not help, with
/// fewer contexts or tokens in the step. A shared prefix that leaves no room for what continues it
/// is given up, and its prompts are prefilled on their own. Nothing waits for ever: see
/// batch_options::patience.
batch_progress run_batch(batch_engine& engine, std::span<const batch_prompt> prompts,
                         const batch_options& options, const batch_callbacks& callbacks);

}  // namespace kvtier::run
