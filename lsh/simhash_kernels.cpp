#include "lsh/simhash_kernels.hpp"

namespace kvtier::lsh {

const simhash_kernels& simhash_kernels_for(cpu::isa_level level) {
#ifdef KVTIER_HAVE_AVX512_BF16
  if (level == cpu::isa_level::avx512_bf16) {
    return simhash_avx512_kernels;
  }
#endif
  static_cast<void>(level);
  return simhash_scalar_kernels;
}

}  // namespace kvtier::lsh
