/// Attention for looking at what a model's heads do: exact, over one sequence, keeping all keys and
/// values and the queries of chosen tokens in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/element.hpp"
#include "cpu/task_arena.hpp"
#include "tools/decoder/attention_backend.hpp"
#include "tools/decoder/model.hpp"
#include "tools/decoder/model_config.hpp"

namespace kvtier::decoder {

struct capture_setting {
  std::vector<std::uint64_t> query_positions;  ///< ascending: whose queries are kept
  std::uint32_t last_layer = 0;                ///< layers up to it are kept
  /// q, k and v are rounded to it before they are attended, so that what is captured is what the
  /// layers above saw.
  element_type element = element_type::bf16;
  std::uint32_t threads = 0;  ///< 0 = topology::usable_threads()
};

class capturing_attention final : public attention_backend {
 public:
  /// Of a sequence of `tokens` tokens. Layers above the last one attend to nothing, and so does
  /// that layer itself: its output reaches no capture. `config` must outlive it.
  capturing_attention(const model_config& config, std::uint64_t tokens, capture_setting setting);

  /// Runs `model`, whose config it has, over the sequence. Throws what the model throws.
  void run(model& model, std::span<const std::int32_t> tokens);
  void attend(const layer_activations& step) override;

  /// [token][K d | V d] of one KV head, RoPE applied where the layer has it.
  std::span<const std::byte> rows(std::uint32_t layer, std::uint32_t kv_head) const {
    return rows_[place(layer, kv_head)];
  }
  /// The same; gives the memory up.
  std::vector<std::byte> take_rows(std::uint32_t layer, std::uint32_t kv_head);
  /// fp32 [query_positions][query_heads][head_dim].
  std::span<const float> queries(std::uint32_t layer) const { return queries_[layer]; }

 private:
  std::size_t place(std::uint32_t layer, std::uint32_t kv_head) const {
    return std::size_t{layer} * config_.kv_heads + kv_head;
  }
  void store(const layer_activations& step);
  const float* round_queries(const layer_activations& step);
  void attend_block(const layer_activations& step, const float* q, std::uint32_t kv_head,
                    std::uint32_t first);

  const model_config& config_;
  const capture_setting setting_;
  const std::uint32_t group_;  // query heads per KV head
  const std::size_t row_bytes_;
  std::vector<std::vector<std::byte>> rows_;  // [layer][KV head]
  std::vector<std::vector<float>> queries_;   // [layer]
  std::vector<std::byte> narrow_;
  std::vector<float> rounded_;
  std::uint64_t position_ = 0;  // of the step's first token
  cpu::task_arena arena_;
};

/// The full-attention layers of a model, ascending.
std::vector<std::uint32_t> full_layers(const model_config& config);

/// `count` positions spaced evenly over the last 1,024 of `tokens`, the last token's among them;
/// all of these positions where they are fewer. Throws std::invalid_argument for no token or no
/// query.
std::vector<std::uint64_t> last_positions(std::uint64_t tokens, std::uint32_t count);

}  // namespace kvtier::decoder
