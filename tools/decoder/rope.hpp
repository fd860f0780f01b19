/// Rotary position embedding, in the half-rotation convention of Hugging Face.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/decoder/model_config.hpp"

namespace kvtier::decoder {

/// Frequencies of a model and the rotations of one step. The angles are computed in fp32 as the
/// models were trained: position times inverse frequency, both rounded.
class rope {
 public:
  rope(const rope_config& config, std::uint32_t head_dim);

  /// Sines and cosines of the rows of a step, used by `apply` until the next call.
  void prepare(const std::vector<std::uint64_t>& positions);

  /// Rotates x [rows][heads][head_dim] in place, rows as prepared.
  void apply(float* x, std::uint32_t heads) const;

  /// One per pair of dimensions: head_dim / 2.
  const std::vector<float>& inverse_frequencies() const noexcept { return inverse_frequencies_; }

 private:
  std::uint32_t head_dim_;
  std::vector<float> inverse_frequencies_;
  std::vector<float> cosines_;  ///< [rows][head_dim / 2]
  std::vector<float> sines_;
};

}  // namespace kvtier::decoder
