/// Heads that another program dumped: keys, values and queries of a model in a safetensors file.
///
/// For each dumped layer i of a full-attention model, RoPE applied to k and q where the layer has
/// it, q not scaled (the softmax takes q.k / sqrt(head_dim)):
///
///     layer.<i>.k            [kv_heads, tokens, head_dim]      F32, F16 or BF16
///     layer.<i>.v            the same shape and type
///     layer.<i>.q            [query_heads, queries, head_dim]  F32, F16 or BF16
///     layer.<i>.q_positions  [queries]                         I64, ascending, in [0, tokens)
///
/// Query head h reads KV head h / (query_heads / kv_heads), and a query at position p the tokens
/// 0 to p. Layers may differ in their shapes. tools/python/dump_qkv.py writes such files; in
/// "__metadata__" it says which model and text they are from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "tools/eval/head_case.hpp"

namespace kvtier::eval {

/// One case per dumped layer and KV head, layers ascending, all queries of the dump; `data` is
/// "dump:NAME:layerL" with the file's name without folder and extension. One layer only where
/// `layer` is set. Throws decoder::model_error that names the file, the tensor and what is
/// expected.
std::vector<head_case> load_dump(const std::filesystem::path& file,
                                 std::optional<std::uint32_t> layer = std::nullopt);

}  // namespace kvtier::eval
