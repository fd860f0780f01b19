/// The limit of everything that streams memory: loads and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvtier::bench {

#if defined(__x86_64__)
inline bool has_avx512() { return __builtin_cpu_supports("avx512bf16") != 0; }

__attribute__((target("avx512f"))) inline void load_wide(const std::byte* from, std::size_t bytes) {
  __m512i sum[4] = {};
  for (std::size_t i = 0; i < bytes; i += 256) {
    for (std::size_t j = 0; j < 4; ++j) {
      sum[j] = _mm512_add_epi64(sum[j], _mm512_loadu_si512(from + i + 64 * j));
    }
  }
  const __m512i both = _mm512_add_epi64(sum[0], sum[1]);
  const __m512i other = _mm512_add_epi64(sum[2], sum[3]);
  asm volatile("" ::"v"(_mm512_add_epi64(both, other)));
}
#else
inline bool has_avx512() { return false; }
inline void load_wide(const std::byte*, std::size_t) {}
#endif

/// Reads `bytes`, a multiple of 256, with the widest loads there are.
inline void load(const std::byte* from, std::size_t bytes) {
  if (has_avx512()) {
    return load_wide(from, bytes);
  }
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes; i += sizeof sum) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + i, sizeof word);
    sum += word;
  }
  asm volatile("" ::"r"(sum));
}

}  // namespace kvtier::bench
