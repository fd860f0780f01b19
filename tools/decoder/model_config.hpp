/// What config.json of a Hugging Face model folder says about a model, checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvtier::decoder {

enum class rope_scaling : std::uint8_t {
  none,
  linear,  ///< positions divided by `factor`
  llama3,  ///< low frequencies divided by `factor`, high ones kept, a ramp between
};

struct rope_config {
  double theta = 10000.0;
  rope_scaling scaling = rope_scaling::none;
  double factor = 1.0;
  double low_freq_factor = 1.0;              ///< llama3 only
  double high_freq_factor = 4.0;             ///< llama3 only
  std::uint64_t original_max_positions = 0;  ///< llama3 only
};

/// How one layer attends.
struct layer_attention {
  std::uint32_t window = 0;  ///< the last `window` tokens, the token itself included; 0 = all
  bool rope = true;          ///< rotary position embedding applied to q and k
};

struct model_config {
  std::string architecture;  ///< "LlamaForCausalLM" or "SmolLM3ForCausalLM"
  std::uint32_t layers = 0;
  std::uint32_t hidden = 0;
  std::uint32_t intermediate = 0;
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;  ///< divides query_heads
  std::uint32_t head_dim = 0;  ///< even
  std::uint32_t vocab = 0;
  std::uint64_t max_positions =
      0;  ///< as the file declares; `model::forward` refuses positions past it
  float rms_norm_eps = 0;
  rope_config rope;
  std::vector<layer_attention> attention;  ///< one per layer
  bool attention_bias = false;             ///< on q, k, v and o
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  std::vector<std::int32_t> eos_ids;  ///< tokens that end a text; may be empty

  /// Reads `folder`/config.json. Throws model_error that names file, key, value and remedy, also
  /// for what would change results and is not supported: other architectures, RoPE types,
  /// activations, quantised weights.
  static model_config load(const std::filesystem::path& folder);

  /// Parameters, tied ones counted once.
  std::uint64_t parameters() const noexcept;
  /// Host bytes that model::forward uses for a step of `tokens` rows over `sequences` sequences,
  /// its logits included.
  std::uint64_t activation_bytes(std::uint64_t tokens, std::uint64_t sequences) const noexcept;
};

}  // namespace kvtier::decoder
