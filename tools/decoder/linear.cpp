#include "tools/decoder/linear.hpp"

#include <vector>

#include "tools/decoder/thread_count.hpp"

namespace kvtier::decoder {
namespace {

using dnnl::memory;
using tag = memory::format_tag;

constexpr auto fp32 = memory::data_type::f32;
/// Rows for which oneDNN chooses the layout of the weights: a prefill chunk. On AVX-512 the layout
/// chosen here was the fastest for one row as well.
constexpr std::uint32_t typical_rows = 512;
/// Prefill chunks and batches come in few sizes; a caller with endless ones must not grow the
/// memory.
constexpr std::size_t most_primitives = 512;
/// Below this many multiplications waking the other threads takes as long as the product.
constexpr std::uint64_t parallel_from = 1u << 20;

memory::desc matrix(std::uint32_t rows, std::uint32_t columns, tag layout) {
  return {{static_cast<memory::dim>(rows), static_cast<memory::dim>(columns)}, fp32, layout};
}

memory::desc vector(std::uint32_t size) { return {{static_cast<memory::dim>(size)}, fp32, tag::a}; }

}  // namespace

matmul_context::matmul_context() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

memory::desc matmul_context::packed_weights(std::uint32_t inputs, std::uint32_t outputs) const {
  const dnnl::inner_product_forward::desc product(
      dnnl::prop_kind::forward_inference, matrix(typical_rows, inputs, tag::ab),
      matrix(outputs, inputs, tag::any), matrix(typical_rows, outputs, tag::ab));
  return dnnl::inner_product_forward::primitive_desc(product, engine_).weights_desc();
}

const dnnl::inner_product_forward& matmul_context::primitive(const shape& key) {
  const auto found = primitives_.find(key);
  if (found != primitives_.end()) {
    return found->second;
  }
  if (primitives_.size() >= most_primitives) {
    primitives_.clear();
  }
  using product = dnnl::inner_product_forward;
  const auto source = matrix(key.rows, key.inputs, tag::ab);
  const auto target = matrix(key.rows, key.outputs, tag::ab);
  const auto weights = packed_weights(key.inputs, key.outputs);
  constexpr auto inference = dnnl::prop_kind::forward_inference;
  const auto description =
      key.bias ? product::desc(inference, source, weights, vector(key.outputs), target)
               : product::desc(inference, source, weights, target);
  dnnl::primitive_attr attributes;
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return primitives_
      .emplace(key, product(product::primitive_desc(description, attributes, engine_)))
      .first->second;
}

linear::linear(matmul_context& context, const weight_view& weight,
               const std::optional<weight_view>& bias, std::uint32_t inputs, std::uint32_t outputs)
    : context_(&context), inputs_(inputs), outputs_(outputs) {
  std::vector<float> plain(weight.count);
  to_float(weight.element, weight.data, plain.data(), plain.size());
  memory source(matrix(outputs, inputs, tag::ab), context.engine(), plain.data());
  weight_ = memory(context.packed_weights(inputs, outputs), context.engine());
  dnnl::reorder(source, weight_).execute(context.stream(), source, weight_);
  context.stream().wait();
  if (bias) {
    bias_ = memory(vector(outputs), context.engine());
    to_float(bias->element, bias->data, static_cast<float*>(bias_.get_data_handle()), outputs);
    bias_bytes_ = bias_.get_desc().get_size();
  }
}

void linear::run(const float* x, std::uint32_t rows, float* y, bool accumulate) const {
  const bool bias = bias_bytes_ != 0;
  const bool parallel = std::uint64_t{inputs_} * outputs_ * rows >= parallel_from;
  const thread_count threads(parallel ? 0 : 1);
  const auto& product = context_->primitive({rows, inputs_, outputs_, bias, accumulate, parallel});
  // oneDNN takes sources as void*, it does not write to them.
  memory source(matrix(rows, inputs_, tag::ab), context_->engine(), const_cast<float*>(x));
  memory target(matrix(rows, outputs_, tag::ab), context_->engine(), y);
  std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weight_}, {DNNL_ARG_DST, target}};
  if (bias) {
    arguments.emplace(DNNL_ARG_BIAS, bias_);
  }
  product.execute(context_->stream(), arguments);
  context_->stream().wait();
}

}  // namespace kvtier::decoder
