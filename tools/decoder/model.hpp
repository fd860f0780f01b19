/// The transformer: weights, and a forward pass that delegates attention.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "tools/decoder/attention_backend.hpp"
#include "tools/decoder/model_config.hpp"
#include "tools/decoder/model_error.hpp"

namespace kvtier::decoder {

/// New tokens of one sequence in a step.
struct sequence_input {
  std::span<const std::int32_t> tokens;  ///< at least one, each in [0, vocab)
  std::uint64_t position = 0;            ///< of the first token; the caller knows what came before
};

struct model_options {
  /// Of the matrix products; 0 = what OpenMP takes by itself. OpenMP's threads spin for a while
  /// after each product: set OMP_WAIT_POLICY=passive before the process starts where others need
  /// the CPUs.
  std::uint32_t threads = 0;
};

/// Holds the weights as fp32 in host memory (bf16 and fp16 convert exactly) and no state of any
/// sequence. One `forward` at a time per model; different models are independent.
class model {
 public:
  /// Reads config.json and the weights: model.safetensors, or the shards that
  /// model.safetensors.index.json lists. Throws model_error.
  static std::unique_ptr<model> load(const std::filesystem::path& folder,
                                     const model_options& options = {});
  ~model();
  model(const model&) = delete;
  model& operator=(const model&) = delete;

  const model_config& config() const noexcept;
  /// Host memory of the weights as held.
  std::uint64_t weight_bytes() const noexcept;

  /// One step over a batch: logits of the last token of each sequence, [sequences][vocab], resized
  /// to fit. Synchronous; the caller chunks long prompts (see model_config::activation_bytes).
  /// Throws std::invalid_argument for an empty batch or sequence, a token outside the vocabulary or
  /// a position past max_positions, before `attention` is called; what `attention` throws passes
  /// through.
  void forward(std::span<const sequence_input> sequences, attention_backend& attention,
               std::vector<float>& logits);

 private:
  struct implementation;
  explicit model(std::unique_ptr<implementation> parts);
  std::unique_ptr<implementation> implementation_;
};

}  // namespace kvtier::decoder
