#include "lsh/row_kernels.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace kvtier::lsh {

const row_kernels& row_kernels_for(cpu::isa_level level) {
  const auto& levels = cpu::available_isa_levels();
  if (std::find(levels.begin(), levels.end(), level) == levels.end()) {
    throw std::invalid_argument(
        "no kernels of sampled attention for instruction set level '" +
        std::string(cpu::to_string(level)) +
        "': this build or CPU lacks it; choose one of cpu::available_isa_levels()");
  }
#ifdef KVTIER_HAVE_AVX512_BF16
  if (level == cpu::isa_level::avx512_bf16) {
    return avx512_bf16_row_kernels;
  }
#endif
  return scalar_row_kernels;
}

}  // namespace kvtier::lsh
