/// Matrix products of the model, by oneDNN in fp32.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>

#include "tools/decoder/tensor_source.hpp"

namespace kvtier::decoder {

/// oneDNN's engine and stream, and the primitives made so far. Not thread-safe.
class matmul_context {
 public:
  matmul_context();

  /// What a primitive is made for; primitives are shared by all layers of equal shape.
  struct shape {
    std::uint32_t rows;
    std::uint32_t inputs;
    std::uint32_t outputs;
    bool bias;
    bool accumulate;
    bool parallel;  ///< over OpenMP's threads; a primitive remembers their number
    // A false alarm of clang-tidy 14 about the 0 that the compiler compares with.
    auto operator<=>(const shape&) const = default;  // NOLINT(modernize-use-nullptr)
  };
  const dnnl::inner_product_forward& primitive(const shape& key);
  /// Layout in which the weights of a layer are kept for all row counts.
  dnnl::memory::desc packed_weights(std::uint32_t inputs, std::uint32_t outputs) const;

  const dnnl::engine& engine() const noexcept { return engine_; }
  dnnl::stream& stream() noexcept { return stream_; }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<shape, dnnl::inner_product_forward> primitives_;
};

/// y = x W^T + b, with W [outputs][inputs] as Hugging Face stores it. The weights are held in fp32
/// in the layout that oneDNN likes best.
class linear {
 public:
  /// Copies the weights; `context` outlives the layer.
  linear(matmul_context& context, const weight_view& weight, const std::optional<weight_view>& bias,
         std::uint32_t inputs, std::uint32_t outputs);

  /// x [rows][inputs] to y [rows][outputs], fp32 host memory; complete on return.
  void apply(const float* x, std::uint32_t rows, float* y) const { run(x, rows, y, false); }
  /// The same, added to what y holds.
  void accumulate(const float* x, std::uint32_t rows, float* y) const { run(x, rows, y, true); }

  std::uint64_t bytes() const { return weight_.get_desc().get_size() + bias_bytes_; }

 private:
  void run(const float* x, std::uint32_t rows, float* y, bool accumulate) const;

  matmul_context* context_;
  std::uint32_t inputs_;
  std::uint32_t outputs_;
  std::uint64_t bias_bytes_ = 0;
  dnnl::memory weight_;
  dnnl::memory bias_;
};

}  // namespace kvtier::decoder
