/// Joins the decoder to the runtime: attention of one step, layer by layer.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "runtime/kvtier.hpp"
#include "tools/decoder/attention_backend.hpp"

namespace kvtier::run {

/// Why a step broke off in the middle.
struct attention_failed : std::runtime_error {
  attention_failed(status why, std::optional<lost_error> data, const std::string& text)
      : std::runtime_error(text), outcome(why), lost(std::move(data)) {}
  status outcome;
  std::optional<lost_error> lost;
};

/// Takes the decoder's fp32 activations to device buffers in the element type of the KV cache, lets
/// the runtime attend, and takes the result back. Synchronises once per layer. Not thread-safe.
class device_attention final : public decoder::attention_backend {
 public:
  /// `trace` may be null; the spans between two attends go there as the decoder's work.
  device_attention(runtime& owner, trace_sink* trace);
  ~device_attention() override;
  device_attention(const device_attention&) = delete;
  device_attention& operator=(const device_attention&) = delete;

  /// The step that the next calls of attend belong to; not owned, must outlive them.
  void begin(step& current);
  /// Throws attention_failed when the runtime answers anything but ok.
  void attend(const decoder::layer_activations& activations) override;
  /// After the last layer.
  void end();

 private:
  /// Page-locked where the device can; grows by reallocation.
  class staging;

  void trace_decoder(const char* name);
  void reserve(std::size_t in_bytes, std::size_t out_bytes);

  runtime& runtime_;
  trace_sink* trace_;
  std::unique_ptr<gpu::stream> stream_;
  gpu::device_buffer device_in_, device_out_;  ///< q, k, v one after another; o
  std::unique_ptr<staging> host_in_, host_out_;
  step* step_ = nullptr;
  std::chrono::steady_clock::time_point decoder_since_;
};

}  // namespace kvtier::run
