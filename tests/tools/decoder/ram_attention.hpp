/// The plainest attention backend: all K and V in memory, sums in float64.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/decoder/attention_backend.hpp"
#include "tools/decoder/model_config.hpp"

namespace kvtier::test {

class ram_attention final : public decoder::attention_backend {
 public:
  explicit ram_attention(decoder::model_config config) : config_(std::move(config)) {}

  /// Sequences are numbered from 0.
  std::size_t add_sequence();
  std::size_t fork(std::size_t parent);
  std::uint64_t length(std::size_t sequence) const;

  /// One sequence's part of a step.
  struct part {
    std::size_t sequence;
    std::uint32_t tokens;
  };
  /// What the rows of the next step belong to.
  void next_step(std::vector<part> parts) { parts_ = std::move(parts); }

  void attend(const decoder::layer_activations& rows) override;

 private:
  struct layer_cache {
    std::vector<float> k;  ///< [tokens][kv_heads][head_dim]
    std::vector<float> v;
  };
  void attend_row(const layer_cache& cache, const decoder::layer_activations& rows, std::size_t row,
                  std::size_t position) const;

  decoder::model_config config_;
  std::vector<std::vector<layer_cache>> sequences_;
  std::vector<part> parts_;
};

}  // namespace kvtier::test
