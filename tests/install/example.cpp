#include <runtime/kvtier.hpp>

#include <chrono>
#include <iostream>

using namespace kvtier;

int main() {
  config options;  // 4,000 tokens of this shape are 8 MB of KV: 3 MiB on the device, the rest in
                   // host RAM
  options.shape = {.layers = 2, .query_heads = 8, .kv_heads = 2, .head_dim = 128};
  options.device_memory = 3 << 20;
  options.host_memory = 16 << 20;
  const auto engine = runtime::open(options);
  const auto stream = engine->device().make_stream("engine");
  const auto activations = [&](std::size_t heads) {  // of 100 tokens, bf16
    return engine->device().allocate(100 * heads * 256, gpu::memory_use::activation, *stream);
  };
  const auto q = activations(8), k = activations(2), v = activations(2), o = activations(8);

  sequence context;
  bool good = engine->create_sequence({.max_tokens = 4000}, &context) == status::ok;
  while (good && context.length() < 4000) {
    const step_request request{&context, 100};
    step next;
    const status admitted = engine->begin_step({&request, 1}, &next);
    if (admitted == status::retry) {  // blocks are still on their way to the host
      engine->wait_for_room(std::chrono::milliseconds(100));
      continue;
    }
    good = admitted == status::ok;
    for (std::uint32_t layer = 0; good && layer < 2; ++layer) {
      // Here the model computes q, k and v of the layer on `stream`; afterwards it uses o.
      good = next.attend(layer, {q.data(), k.data(), v.data(), o.data()}, *stream) == status::ok;
    }
    good = good && next.end() == status::ok;
  }
  stream->synchronize();
  std::cout << context.length() << " tokens, " << engine->stats().host.bytes
            << " bytes of host memory in use\n";
  return good ? 0 : 1;
}
