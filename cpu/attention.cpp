#include "cpu/attention.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cpu/attention_levels.hpp"

namespace kvtier::cpu {

const attention_kernels& kernels_for(isa_level level) {
  const auto& levels = available_isa_levels();
  if (std::find(levels.begin(), levels.end(), level) == levels.end()) {
    throw std::invalid_argument(
        "no attention kernels for instruction set level '" + std::string(to_string(level)) +
        "': this build or CPU lacks it; choose one of available_isa_levels()");
  }
#ifdef KVTIER_HAVE_AVX512_BF16
  if (level == isa_level::avx512_bf16) {
    return avx512_bf16_kernels;
  }
#endif
  return scalar_kernels;
}

const attention_kernels& active_kernels() {
  static const attention_kernels& kernels = kernels_for(active_isa());
  return kernels;
}

}  // namespace kvtier::cpu
