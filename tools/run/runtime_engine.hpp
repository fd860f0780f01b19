/// The batch engine that `kvtier run` uses: the decoder over the runtime.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>

#include "runtime/kvtier.hpp"
#include "tools/decoder/model.hpp"
#include "tools/run/batch_engine.hpp"
#include "tools/run/device_attention.hpp"

namespace kvtier::run {

class runtime_engine final : public batch_engine {
 public:
  /// Runtime and model are not owned; `trace` may be null. The runtime's shape must be the model's.
  /// `last_error` is the last error that the runtime logged: why a step failed.
  runtime_engine(runtime& tiers, decoder::model& model, trace_sink* trace,
                 std::function<std::string()> last_error);

  status create(std::uint64_t max_tokens, context_id* out) override;
  status fork(context_id parent, std::uint64_t tokens, std::uint64_t max_tokens,
              context_id* out) override;
  void release(context_id context) override { contexts_.erase(context); }
  std::uint64_t fork_alignment() const override { return runtime_.fork_alignment(); }
  std::uint32_t max_step_tokens(std::uint32_t contexts, std::uint64_t length) const override;
  std::uint32_t max_sampled_tokens(std::uint32_t contexts) const override {
    return runtime_.max_sampled_tokens(contexts);
  }
  /// Throws std::logic_error if the runtime refuses arguments, and what the device throws.
  step_outcome step(std::span<const step_part> parts) override;
  void wait_for_room(std::chrono::milliseconds timeout) override {
    runtime_.wait_for_room(timeout);
  }
  engine_usage usage() const override;
  row_usage rows(context_id context) const override;
  error_usage errors(context_id context) const override;

 private:
  context_id keep(sequence&& made);
  step_outcome forward(std::span<const step_part> parts, kvtier::step& admitted);

  runtime& runtime_;
  decoder::model& model_;
  trace_sink* trace_;
  std::function<std::string()> last_error_;
  device_attention attention_;
  bool offloads_;  ///< there is a host tier
  std::unordered_map<context_id, sequence> contexts_;
  context_id last_id_ = 0;
  std::vector<float> logits_;
};

}  // namespace kvtier::run
