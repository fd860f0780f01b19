/// Heads of a model over a text: what its full-attention layers attend to, captured.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/decoder/model.hpp"
#include "tools/eval/head_case.hpp"

namespace kvtier::eval {

struct capture_options {
  std::string data;                            ///< of the cases: "trained" makes "trained:layer1"
  std::vector<std::uint64_t> query_positions;  ///< ascending, each in [0, tokens)
  std::optional<std::uint32_t> layer;          ///< a full layer; nullopt = all of them
  /// q, k and v are rounded to it before they are attended, so that what is captured is what the
  /// layers above saw.
  element_type element = element_type::bf16;
  std::uint32_t threads = 0;  ///< of attention; 0 = topology::usable_threads()
};

/// Runs `model` over `tokens` from position 0 with exact attention, and returns one case per
/// captured layer and KV head, layers ascending: all keys and values (RoPE applied where the layer
/// has it), and a query per position, whose context ends with its own token. Layers above the last
/// captured one attend to nothing, and so does that layer itself: its output reaches no capture.
/// Host memory: K and V of the layers up to the last captured one, and the cases in fp32. Throws
/// std::invalid_argument that names what does not fit; what the model throws passes through.
std::vector<head_case> capture_heads(decoder::model& model, std::span<const std::int32_t> tokens,
                                     const capture_options& options);

}  // namespace kvtier::eval
