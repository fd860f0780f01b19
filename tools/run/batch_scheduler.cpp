#include "tools/run/batch_scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tools/run/pending_work.hpp"
#include "tools/run/prefix_plan.hpp"
#include "tools/run/step_choice.hpp"

namespace kvtier::run {
namespace {

using steady = std::chrono::steady_clock;
constexpr std::chrono::milliseconds wait_slice{50};

/// Fewer new tokens per step would make reading a prompt a crawl.
constexpr std::uint32_t least_useful_chunk = 16;
/// Steps that must be taken at once before a chunk that had to be halved is doubled again.
constexpr std::uint32_t steps_before_growth = 8;

double seconds_since(steady::time_point begin) {
  return std::chrono::duration<double>(steady::now() - begin).count();
}

class batch_job {
 public:
  batch_job(batch_engine& engine, std::span<const batch_prompt> prompts,
            const batch_options& options, const batch_callbacks& callbacks);
  batch_progress run();

 private:
  // Admission.
  void admit();
  bool device_has_room(work_item item) const;
  std::uint64_t final_length(work_item item) const;
  status place(work_item item, active_context* out);
  void admit_stuck(work_item item);
  void start(active_context placed);
  void refuse(work_item item, std::string error);

  // Steps.
  void run_step(const step_choice& wanted);
  step_outcome try_step(step_choice* choice);
  void learn_chunk(const step_choice& wanted, const step_choice& taken);
  void apply(const step_choice& choice, const step_outcome& outcome, double seconds,
             const engine_usage& before);
  void fail_step(const step_choice& choice, const step_outcome& outcome);
  void add_counts(active_context& active) const;
  void accept_token(active_context& active, const step_outcome& outcome, std::size_t part);
  void finish(active_context& active, finish_reason reason, std::string error = {});
  void sweep();

  void interrupt();
  bool stopped() const { return callbacks_.stop && callbacks_.stop(); }
  void report() const {
    if (callbacks_.progress) {
      callbacks_.progress(progress_);
    }
  }

  batch_engine& engine_;
  std::span<const batch_prompt> prompts_;
  const batch_options& options_;
  const batch_callbacks& callbacks_;

  const prefix_plan plan_;
  pending_work pending_;
  std::vector<active_context> active_;
  std::uint64_t chunk_;            ///< new tokens of a reading step, all contexts together
  std::uint32_t clean_steps_ = 0;  ///< since the chunk was last changed
  batch_progress progress_;
};

std::vector<std::vector<std::int32_t>> tokens_of(std::span<const batch_prompt> prompts) {
  std::vector<std::vector<std::int32_t>> tokens;
  tokens.reserve(prompts.size());
  for (const auto& prompt : prompts) {
    tokens.push_back(prompt.tokens);
  }
  return tokens;
}

batch_job::batch_job(batch_engine& engine, std::span<const batch_prompt> prompts,
                     const batch_options& options, const batch_callbacks& callbacks)
    : engine_(engine),
      prompts_(prompts),
      options_(options),
      callbacks_(callbacks),
      plan_(plan_prefixes(tokens_of(prompts), engine.fork_alignment(), own_tokens(options))),
      pending_(plan_, [&engine](context_id context) { engine.release(context); }),
      chunk_(options.prefill_chunk) {
  progress_.prompts = prompts.size();
  progress_.prefill_tokens = distinct_tokens(plan_, tokens_of(prompts));
  progress_.shared_prefixes = plan_.nodes.size();
}

batch_progress batch_job::run() {
  report();
  while (!pending_.empty() || !active_.empty()) {
    if (stopped()) {
      interrupt();
      break;
    }
    admit();
    if (active_.empty()) {
      continue;
    }
    const auto choice = choose_step(engine_, active_, chunk_);
    if (choice.misfit) {
      auto& active = active_[*choice.misfit];
      finish(active, finish_reason::failed,
             fmt::format("a context of {} tokens leaves the device no room for a step; raise "
                         "--device-memory, or lower --sinks, --window or --block-tokens",
                         active.goal));
    } else {
      run_step(choice);
    }
    sweep();
    report();
  }
  return progress_;
}

/// Whether the device has room for one more context that reads and decodes beside the active ones:
/// every context keeps its newest, unfinished block there, and what is sampled for it passes
/// through.
bool batch_job::device_has_room(work_item item) const {
  if (active_.empty()) {
    return true;
  }
  std::uint64_t longest = final_length(item);
  for (const auto& active : active_) {
    longest = std::max(longest, final_length(active.item));
  }
  const auto contexts = static_cast<std::uint32_t>(active_.size() + 1);
  return engine_.max_step_tokens(contexts, longest) >= least_useful_chunk &&
         (!options_.question_tokens || engine_.max_sampled_tokens(contexts) > 0);
}

void batch_job::admit() {
  const auto reading_prefix = [&] {
    return std::any_of(active_.begin(), active_.end(),
                       [](const active_context& active) { return active.item.is_prefix; });
  };
  while (!pending_.empty() && active_.size() < options_.max_batch && !reading_prefix()) {
    const auto item = pending_.front();
    if (!device_has_room(item)) {
      return;
    }
    active_context placed;
    switch (place(item, &placed)) {
      case status::ok:
        start(std::move(placed));
        break;
      case status::retry:
        if (active_.empty()) {
          admit_stuck(item);
        }
        return;
      default:
        refuse(item,
               "needs more memory than the tiers have in all; raise --device-memory, "
               "--host-memory or --disk, or shorten the prompt or max_tokens");
    }
  }
}

std::uint64_t batch_job::final_length(work_item item) const {
  return item.is_prefix ? plan_.nodes[item.index].length
                        : prompts_[item.index].tokens.size() + prompts_[item.index].max_tokens;
}

/// Creates or forks the context of `item`.
status batch_job::place(work_item item, active_context* out) {
  out->item = item;
  if (item.is_prefix) {
    out->prompt = plan_.nodes[item.index].first_prompt;
    out->goal = plan_.nodes[item.index].length;
    out->exact_goal = out->goal;
  } else {
    out->prompt = item.index;
    out->goal = prompts_[item.index].tokens.size();
    out->exact_goal = options_.question_tokens
                          ? out->goal - std::min<std::uint64_t>(out->goal, own_tokens(options_))
                          : out->goal;
  }
  out->all_exact = !options_.question_tokens;
  const auto most = final_length(item);
  if (const auto prefix = pending_.prefix_of(item)) {
    const auto forked = engine_.fork(prefix->context, prefix->length, most, &out->context);
    if (forked != status::rejected) {
      out->length = prefix->length;
      out->result = *prefix->cost;
      out->result.shared_tokens = prefix->length;
      return forked;
    }
  }
  return engine_.create(most, &out->context);
}

/// Nothing runs and yet there is no room for `item`: freed blocks may still be on their way; then
/// the prefixes above it are in the way; then it cannot be had.
void batch_job::admit_stuck(work_item item) {
  const auto begin = steady::now();
  const auto limit = pending_.holds_prefix_of(item) ? options_.shrink_after : options_.patience;
  while (steady::now() - begin < limit) {
    if (stopped()) {
      return;
    }
    engine_.wait_for_room(wait_slice);
    active_context placed;
    const auto outcome = place(item, &placed);
    if (outcome == status::ok) {
      start(std::move(placed));
    }
    if (outcome != status::retry) {
      return;
    }
  }
  if (pending_.holds_prefix_of(item)) {
    pending_.abandon_prefixes_of(item);
  } else {
    refuse(item, fmt::format("no room in the tiers after {} s though nothing else runs; raise "
                             "--device-memory, --host-memory or --disk",
                             std::chrono::duration<double>(limit).count()));
  }
}

/// The first pending one has its context.
void batch_job::start(active_context placed) {
  pending_.drop_front();
  pending_.settle(placed.item);
  active_.push_back(std::move(placed));
}

/// `item`, the first pending one, will not run: a prompt fails, a prefix leaves its work to what
/// continues it.
void batch_job::refuse(work_item item, std::string error) {
  pending_.drop_front();
  if (item.is_prefix) {
    pending_.skip_prefix(item.index);
    return;
  }
  pending_.settle(item);
  batch_result result;
  result.error = std::move(error);
  ++progress_.prompts_done;
  callbacks_.finished(item.index, result);
}

/// Asks until the step is taken or refused, making it smaller on the way. `retry` comes back only
/// when patience ran out or the job is to stop.
step_outcome batch_job::try_step(step_choice* choice) {
  auto asked_since = steady::now();
  for (;;) {
    std::vector<std::int32_t> tokens;
    auto outcome = engine_.step(make_parts(*choice, prompts_, active_, &tokens));
    if (outcome.outcome == status::retry) {
      if (stopped()) {
        return outcome;
      }
      engine_.wait_for_room(wait_slice);
      const auto waited = steady::now() - asked_since;
      if (waited >= options_.shrink_after && choice->shrink()) {
        asked_since = steady::now();
      } else if (waited >= options_.patience) {
        return outcome;
      }
    } else if (outcome.outcome != status::rejected || !choice->shrink()) {
      return outcome;
    }
  }
}

/// A reading step that had to be made smaller will not fit next time either; later perhaps.
void batch_job::learn_chunk(const step_choice& wanted, const step_choice& taken) {
  if (active_[taken.parts.front().active].phase() == context_phase::decoding) {
    return;
  }
  if (taken.tokens() < wanted.tokens()) {
    chunk_ = taken.tokens();
    clean_steps_ = 0;
  } else if (++clean_steps_ >= steps_before_growth) {
    chunk_ = std::min<std::uint64_t>(chunk_ * 2, options_.prefill_chunk);
    clean_steps_ = 0;
  }
}

void batch_job::run_step(const step_choice& wanted) {
  auto choice = wanted;
  const auto before = engine_.usage();
  const auto begin = steady::now();
  const auto outcome = try_step(&choice);
  if (outcome.outcome == status::ok) {
    learn_chunk(wanted, choice);
    apply(choice, outcome, seconds_since(begin), before);
  } else if (!(outcome.outcome == status::retry && stopped())) {
    fail_step(choice, outcome);
  }
}

void batch_job::apply(const step_choice& choice, const step_outcome& outcome, double seconds,
                      const engine_usage& before) {
  const auto after = engine_.usage();
  progress_.index_peak = std::max(progress_.index_peak, after.index_bytes);
  const auto peak = [](std::uint64_t now, std::uint64_t peak_before, std::uint64_t peak_after) {
    return peak_after > peak_before ? peak_after : now;
  };
  const auto reading = active_[choice.parts.front().active].phase() != context_phase::decoding;
  (reading ? progress_.prefill_seconds : progress_.decode_seconds) += seconds;
  for (std::size_t i = 0; i < choice.parts.size(); ++i) {
    auto& active = active_[choice.parts[i].active];
    auto& result = active.result;
    (reading ? result.prefill_seconds : result.decode_seconds) += seconds;
    result.device_peak = std::max(result.device_peak,
                                  peak(after.device_bytes, before.device_peak, after.device_peak));
    result.host_peak =
        std::max(result.host_peak, peak(after.host_bytes, before.host_peak, after.host_peak));
    result.disk_peak =
        std::max(result.disk_peak, peak(after.disk_bytes, before.disk_peak, after.disk_peak));
    const auto question_is_next = active.phase() == context_phase::reading &&
                                  active.wanted() == choice.parts[i].tokens && !active.all_exact;
    active.length += choice.parts[i].tokens;
    (reading ? progress_.prefilled_tokens : progress_.decoded_tokens) += choice.parts[i].tokens;
    if (question_is_next) {
      active.exact_rows = engine_.rows(active.context);
    }
    if (active.length < active.goal) {
      continue;
    }
    if (active.item.is_prefix) {
      add_counts(active);
      pending_.add_prefix(active.item.index, std::exchange(active.context, 0), result);
    } else {
      accept_token(active, outcome, i);
    }
  }
}

void batch_job::accept_token(active_context& active, const step_outcome& outcome,
                             std::size_t part) {
  const auto token = outcome.next[part];
  if (callbacks_.token) {
    const auto vocab = outcome.logits.size() / outcome.next.size();
    callbacks_.token(active.prompt, token, outcome.logits.subspan(part * vocab, vocab));
  }
  const auto& stop = options_.stop_tokens;
  if (std::find(stop.begin(), stop.end(), token) != stop.end()) {
    finish(active, finish_reason::stop);
    return;
  }
  active.result.tokens.push_back(token);
  if (active.result.tokens.size() >= prompts_[active.prompt].max_tokens) {
    finish(active, finish_reason::length);
  }
}

/// The step was refused or broke. Whose fault it was is found by trying the halves.
void batch_job::fail_step(const step_choice& choice, const step_outcome& outcome) {
  auto culprit = outcome.lost_part;
  if (!culprit && choice.parts.size() > 1) {
    const auto middle = choice.parts.begin() + static_cast<std::ptrdiff_t>(choice.parts.size() / 2);
    run_step({{choice.parts.begin(), middle}});
    run_step({{middle, choice.parts.end()}});
    return;
  }
  auto& active = active_[choice.parts[culprit.value_or(0)].active];
  const auto no_room = outcome.outcome == status::retry || outcome.outcome == status::rejected;
  auto error = no_room ? std::string(
                             "no room for one more token though nothing else runs; raise "
                             "--device-memory or --host-memory, or lower --max-batch")
                       : fmt::format("{} after {} of {} tokens: {}", to_string(outcome.outcome),
                                     active.length, active.goal, outcome.cause);
  finish(active, finish_reason::failed, std::move(error));
  active.result.runtime_fault = !no_room;
}

/// Adds what the context's own steps counted to what its prefix did. Where a selector is at work
/// only the steps that used it count.
void batch_job::add_counts(active_context& active) const {
  auto& result = active.result;
  if (!active.all_exact && active.phase() == context_phase::reading) {
    return;
  }
  const auto own = engine_.rows(active.context);
  const auto& before = active.exact_rows;
  result.rows.add({own.offloaded - before.offloaded, own.loaded - before.loaded,
                   own.keys_scored - before.keys_scored});
  // A step that broke may never be reported on; asking would wait for it.
  if (result.reason != finish_reason::failed) {
    result.errors = engine_.errors(active.context);
  }
}

/// Ends a context; `sweep` reports it.
void batch_job::finish(active_context& active, finish_reason reason, std::string error) {
  active.result.reason = reason;
  active.result.error = std::move(error);
  if (active.context != 0) {
    add_counts(active);
    engine_.release(std::exchange(active.context, 0));
  }
}

/// Takes what ended out of the active list.
void batch_job::sweep() {
  for (const auto& active : active_) {
    if (active.context != 0) {
      continue;
    }
    const auto failed_prefix = active.item.is_prefix && !active.result.error.empty();
    if (failed_prefix) {
      pending_.skip_prefix(active.item.index);
    }
    if (!active.item.is_prefix) {
      ++progress_.prompts_done;
      callbacks_.finished(active.item.index, active.result);
    }
  }
  std::erase_if(active_, [](const active_context& active) { return active.context == 0; });
}

/// Reports everything unfinished and gives all contexts back.
void batch_job::interrupt() {
  std::vector<work_item> reading;
  for (auto& active : active_) {
    if (active.item.is_prefix) {
      reading.push_back(active.item);
    } else {
      finish(active, finish_reason::interrupted);
    }
  }
  sweep();
  for (const auto& active : active_) {
    engine_.release(active.context);
  }
  active_.clear();
  for (const auto prompt : pending_.take_prompts(std::move(reading))) {
    batch_result result;
    result.reason = finish_reason::interrupted;
    callbacks_.finished(prompt, result);
  }
}

}  // namespace

std::uint32_t own_tokens(const batch_options& options) {
  return std::max(options.question_tokens.value_or(1), 1U);
}

batch_progress run_batch(batch_engine& engine, std::span<const batch_prompt> prompts,
                         const batch_options& options, const batch_callbacks& callbacks) {
  return batch_job(engine, prompts, options, callbacks).run();
}

}  // namespace kvtier::run
