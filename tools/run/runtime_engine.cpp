#include "tools/run/runtime_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

#include "runtime/trace_sink.hpp"

namespace kvtier::run {
namespace {

/// Steps are of one kind, see context_phase; one token that is read counts as decoded.
const char* step_name(std::span<const step_part> parts) {
  const auto reads = std::any_of(parts.begin(), parts.end(),
                                 [](const step_part& part) { return part.tokens.size() > 1; });
  if (!reads) {
    return "decode";
  }
  return parts.front().exact ? "prefill" : "question";
}

}  // namespace

runtime_engine::runtime_engine(runtime& tiers, decoder::model& model, trace_sink* trace,
                               std::function<std::string()> last_error)
    : runtime_(tiers),
      model_(model),
      trace_(trace),
      last_error_(std::move(last_error)),
      attention_(tiers, trace),
      offloads_(tiers.stats().host.cap_bytes > 0) {}

context_id runtime_engine::keep(sequence&& made) {
  contexts_.emplace(++last_id_, std::move(made));
  return last_id_;
}

status runtime_engine::create(std::uint64_t max_tokens, context_id* out) {
  sequence made;
  const auto outcome = runtime_.create_sequence({max_tokens}, &made);
  if (outcome == status::ok) {
    *out = keep(std::move(made));
  }
  return outcome;
}

status runtime_engine::fork(context_id parent, std::uint64_t tokens, std::uint64_t max_tokens,
                            context_id* out) {
  sequence made;
  const auto outcome = runtime_.fork(contexts_.at(parent), tokens, {max_tokens}, &made);
  if (outcome == status::ok) {
    *out = keep(std::move(made));
  }
  return outcome;
}

engine_usage runtime_engine::usage() const {
  const auto stats = runtime_.stats();
  return {stats.device.bytes,    stats.host.bytes,      stats.disk.bytes, stats.device.peak_bytes,
          stats.host.peak_bytes, stats.disk.peak_bytes, stats.index_bytes};
}

row_usage runtime_engine::rows(context_id context) const {
  const auto rows = contexts_.at(context).rows();
  return {rows.offloaded, rows.loaded, rows.keys_scored};
}

error_usage runtime_engine::errors(context_id context) const {
  const auto errors = contexts_.at(context).errors();
  return {errors.rows,      errors.certified,    errors.bound_sum, errors.bound_max,
          errors.estimated, errors.estimate_sum, errors.shrink_sum};
}

std::uint32_t runtime_engine::max_step_tokens(std::uint32_t contexts, std::uint64_t length) const {
  if (offloads_) {
    return runtime_.max_step_tokens(contexts, length);
  }
  // Without a host tier the device holds all that was admitted, whatever forks share; what a step
  // needs beyond that is passing room for sliding layers, which begin_step knows better.
  return std::max(1u, runtime_.max_step_tokens(1, length) / contexts);
}

step_outcome runtime_engine::step(std::span<const step_part> parts) {
  std::vector<step_request> requests;
  requests.reserve(parts.size());
  for (const auto& part : parts) {
    requests.push_back(
        {&contexts_.at(part.context), static_cast<std::uint32_t>(part.tokens.size()), part.exact});
  }
  kvtier::step admitted;
  if (const auto outcome = runtime_.begin_step(requests, &admitted); outcome != status::ok) {
    return {outcome, {}, {}, outcome == status::retry ? std::string() : last_error_()};
  }
  const auto begin = std::chrono::steady_clock::now();
  auto result = forward(parts, admitted);
  if (trace_ != nullptr) {
    trace_->add({.track = "steps",
                 .name = step_name(parts),
                 .begin = begin,
                 .end = std::chrono::steady_clock::now()});
  }
  return result;
}

step_outcome runtime_engine::forward(std::span<const step_part> parts, kvtier::step& admitted) {
  std::vector<decoder::sequence_input> inputs;
  inputs.reserve(parts.size());
  for (const auto& part : parts) {
    inputs.push_back({part.tokens, part.position});
  }
  step_outcome result;
  attention_.begin(admitted);
  try {
    model_.forward(inputs, attention_, logits_);
  } catch (const attention_failed& failure) {
    if (failure.outcome == status::rejected) {
      throw std::logic_error(failure.what());
    }
    result.outcome = failure.outcome;
    result.cause = failure.lost ? failure.lost->cause : last_error_();
    for (std::size_t i = 0; failure.lost && i < parts.size(); ++i) {
      if (contexts_.at(parts[i].context).id() == failure.lost->sequence) {
        result.lost_part = i;
      }
    }
    return result;
  }
  attention_.end();
  if (const auto outcome = admitted.end(); outcome != status::ok) {
    throw std::logic_error(fmt::format("the step could not end: {}", to_string(outcome)));
  }
  const auto vocab = static_cast<std::ptrdiff_t>(model_.config().vocab);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto row = logits_.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
    const auto largest = std::max_element(row, row + vocab);
    if (!std::isfinite(*largest)) {
      throw std::runtime_error(
          fmt::format("the model's logits are not finite at position {}; check the weights, or try "
                      "--kv-dtype fp32",
                      parts[i].position + parts[i].tokens.size() - 1));
    }
    result.next.push_back(static_cast<std::int32_t>(largest - row));
  }
  result.logits = logits_;
  return result;
}

}  // namespace kvtier::run
