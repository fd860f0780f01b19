/// Instruction sets the kernels exist for, and which one runs.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvtier::cpu {

enum class isa_level : std::uint8_t {
  scalar,       ///< portable C++; the reference of all others
  avx512_bf16,  ///< AVX-512 F/BW/DQ/VL, VBMI, BITALG, VNNI, BF16 and GFNI (Zen 4, Sapphire Rapids
                ///< and later)
};

std::string_view to_string(isa_level level) noexcept;

/// Levels that this build contains and this CPU can run, lowest first; never empty.
const std::vector<isa_level>& available_isa_levels();

/// The highest available level, or the one that the environment variable KVTIER_ISA names.
/// Read once per process. Throws std::invalid_argument when KVTIER_ISA names an unknown level, or
/// one that is not available, with the list of those that are.
isa_level active_isa();

/// The choice that active_isa() makes when the variable holds `requested` (null or empty: not set).
isa_level choose_isa(const char* requested);

}  // namespace kvtier::cpu
