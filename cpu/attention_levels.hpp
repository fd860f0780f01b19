/// Which kernels each instruction set's files provide; private to cpu/.
#pragma once

#include "cpu/attention.hpp"

namespace kvtier::cpu {

extern const attention_kernels scalar_kernels;
#ifdef KVTIER_HAVE_AVX512_BF16
extern const attention_kernels avx512_bf16_kernels;
#endif

}  // namespace kvtier::cpu
