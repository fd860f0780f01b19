/// The small transformer that `kvtier run` embeds: reads a Hugging Face model folder (families
/// Llama and SmolLM3) and runs it on the CPU in fp32. It knows nothing of kvtier's runtime: whoever
/// keeps the KV cache implements `attention_backend`. Depends on cpu/ for element conversion, and
/// for attention where one looks at its heads (capturing_attention).
#pragma once

#include "tools/decoder/attention_backend.hpp"
#include "tools/decoder/model.hpp"
#include "tools/decoder/model_config.hpp"
#include "tools/decoder/model_error.hpp"
#include "tools/decoder/tokenizer.hpp"
