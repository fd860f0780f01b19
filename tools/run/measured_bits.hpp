/// Bits per KV head for --selector sketch:bits=auto: what the model's heads do on a prompt, seen
/// before the runtime opens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/config.hpp"
#include "tools/decoder/model.hpp"

namespace kvtier::run {

struct measured_bits {
  std::uint64_t tokens = 0;  ///< that were looked at; 0: too few to tell, or no layer to look at
  std::uint32_t one_bit = 0, two_bits = 0;  ///< KV heads of layers that the selector draws from

  bool operator==(const measured_bits&) const = default;
};

/// Runs `model` over the first 4,096 tokens of `prompt`, at most, and fills settings.head_bits; all
/// heads get two bits where the prompt is too short. Takes host memory for their KV and lets go of
/// it. nullopt, and nothing is done, if the selector is not sketch:bits=auto. Throws what the model
/// throws.
std::optional<measured_bits> measure_bits(decoder::model& model,
                                          std::span<const std::int32_t> prompt, config& settings);

}  // namespace kvtier::run
