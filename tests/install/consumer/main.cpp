/// Uses the installed package as an engine would: one sequence, a prompt in one step and some
/// decoded tokens, with K and V that are offloaded in part, checked against attention computed
/// plainly in double.
#include <runtime/kvtier.hpp>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string_view>
#include <vector>

namespace {

constexpr std::uint32_t layers = 2;
constexpr std::uint32_t query_heads = 4;
constexpr std::uint32_t kv_heads = 2;
constexpr std::uint32_t head_dim = 64;
constexpr std::uint32_t prompt_tokens = 900;
constexpr std::uint32_t decoded_tokens = 5;
constexpr std::uint32_t all_tokens = prompt_tokens + decoded_tokens;

void require(bool condition, std::string_view what) {
  if (!condition) {
    std::cerr << "failed: " << what << '\n';
    std::exit(1);
  }
}

// q, k and v of all tokens of a layer, [token][head][head_dim].
struct activations {
  std::vector<float> q, k, v;
};

activations random_activations(std::mt19937& random) {
  std::normal_distribution<float> normal;
  const auto fill = [&](std::uint32_t heads) {
    std::vector<float> values(std::size_t{all_tokens} * heads * head_dim);
    for (float& value : values) {
      value = normal(random);
    }
    return values;
  };
  activations made;
  made.q = fill(query_heads);
  made.k = fill(kv_heads);
  made.v = fill(kv_heads);
  return made;
}

// o of one token and query head, in double, head_dim values.
std::vector<double> plain_attention(const activations& a, std::uint32_t token, std::uint32_t head) {
  const std::uint32_t kv_head = head / (query_heads / kv_heads);
  const float* q = &a.q[(std::size_t{token} * query_heads + head) * head_dim];
  std::vector<double> logits;
  double largest = -INFINITY;
  for (std::uint32_t i = 0; i <= token; ++i) {
    const float* k = &a.k[(std::size_t{i} * kv_heads + kv_head) * head_dim];
    double dot = 0;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      dot += double{q[d]} * double{k[d]};
    }
    logits.push_back(dot / std::sqrt(double{head_dim}));
    largest = std::max(largest, logits.back());
  }
  std::vector<double> out(head_dim, 0.0);
  double sum = 0;
  for (std::uint32_t i = 0; i <= token; ++i) {
    const double weight = std::exp(logits[i] - largest);
    const float* v = &a.v[(std::size_t{i} * kv_heads + kv_head) * head_dim];
    sum += weight;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      out[d] += weight * double{v[d]};
    }
  }
  for (double& value : out) {
    value /= sum;
  }
  return out;
}

// Runs one step of `tokens` tokens from `first` on; returns o per layer,
// [token][query_heads][head_dim].
std::vector<std::vector<float>> run_step(kvtier::runtime& runtime, kvtier::sequence& context,
                                         const std::vector<activations>& model, std::uint32_t first,
                                         std::uint32_t tokens, kvtier::gpu::stream& stream) {
  using kvtier::gpu::copy_kind;
  auto& device = runtime.device();
  const std::size_t row_bytes = head_dim * sizeof(float);
  const auto buffer = [&](std::uint32_t heads) {
    return device.allocate(tokens * heads * row_bytes, kvtier::gpu::memory_use::activation, stream);
  };
  const auto q = buffer(query_heads);
  const auto k = buffer(kv_heads);
  const auto v = buffer(kv_heads);
  const auto o = buffer(query_heads);

  const kvtier::step_request request{&context, tokens};
  kvtier::step step;
  kvtier::status admitted = runtime.begin_step({&request, 1}, &step);
  while (admitted == kvtier::status::retry) {
    runtime.wait_for_room(std::chrono::milliseconds(100));
    admitted = runtime.begin_step({&request, 1}, &step);
  }
  require(admitted == kvtier::status::ok, "begin_step");

  std::vector<std::vector<float>> outputs;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const auto upload = [&](const kvtier::gpu::device_buffer& to, const std::vector<float>& from,
                            std::uint32_t heads) {
      device.copy(to.data(), from.data() + std::size_t{first} * heads * head_dim, to.size(),
                  copy_kind::host_to_device, stream);
    };
    upload(q, model[layer].q, query_heads);
    upload(k, model[layer].k, kv_heads);
    upload(v, model[layer].v, kv_heads);
    const kvtier::attend_io io{.q = q.data(),
                               .k = k.data(),
                               .v = v.data(),
                               .o = o.data(),
                               .o_element = kvtier::element_type::fp32};
    require(step.attend(layer, io, stream) == kvtier::status::ok, "attend");
    std::vector<float> output(std::size_t{tokens} * query_heads * head_dim);
    device.copy(output.data(), o.data(), o.size(), copy_kind::device_to_host, stream);
    stream.synchronize();
    outputs.push_back(std::move(output));
  }
  require(step.end() == kvtier::status::ok, "end");
  return outputs;
}

double largest_error(const std::vector<std::vector<float>>& outputs,
                     const std::vector<activations>& model, std::uint32_t first,
                     std::uint32_t tokens) {
  double largest = 0;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    for (std::uint32_t t = 0; t < tokens; ++t) {
      for (std::uint32_t head = 0; head < query_heads; ++head) {
        const auto expected = plain_attention(model[layer], first + t, head);
        const float* got = &outputs[layer][(std::size_t{t} * query_heads + head) * head_dim];
        for (std::uint32_t d = 0; d < head_dim; ++d) {
          const double error = std::abs(double{got[d]} - expected[d]);
          largest = error <= largest ? largest : error;  // a NaN must win
        }
      }
    }
  }
  return largest;
}

}  // namespace

int main() {
  kvtier::config options;
  options.shape = {.layers = layers,
                   .query_heads = query_heads,
                   .kv_heads = kv_heads,
                   .head_dim = head_dim,
                   .element = kvtier::element_type::fp32};
  options.device = kvtier::gpu::device_kind::host;
  options.device_memory = std::uint64_t{1} << 20;  // the sequence takes 1.8 MiB
  options.host_memory = std::uint64_t{8} << 20;
  options.sinks = 64;
  options.window = 64;
  options.ring_buffers = 2;
  options.ring_buffer_blocks = 1;
  options.threads = 2;
  const auto runtime = kvtier::runtime::open(options);
  const auto stream = runtime->device().make_stream("engine");

  kvtier::sequence context;
  require(runtime->create_sequence({.max_tokens = all_tokens}, &context) == kvtier::status::ok,
          "create_sequence");
  std::mt19937 random(7);
  std::vector<activations> model;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    model.push_back(random_activations(random));
  }

  double error = 0;
  const std::uint32_t chunk = 100;
  for (std::uint32_t first = 0; first < all_tokens;) {
    const std::uint32_t tokens = first < prompt_tokens ? std::min(chunk, prompt_tokens - first) : 1;
    const auto outputs = run_step(*runtime, context, model, first, tokens, *stream);
    error = std::max(error, largest_error(outputs, model, first, tokens));
    first += tokens;
    require(context.length() == first, "length");
  }
  std::cout << "largest error " << error << '\n';
  require(error < 1e-4, "attention equals the plain computation within 1e-4");
  require(runtime->stats().host.peak_bytes > 0, "part of the sequence went to the host");
}
