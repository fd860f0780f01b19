/// The passes over hashes, one table of functions per instruction set. All give the same bits: sums
/// run over the dims in order, with products and sums rounded apart. Private to lsh/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.hpp"
#include "lsh/simhash_shape.hpp"

namespace kvtier::lsh {

struct simhash_kernels {
  /// codes [tables][64] of the tokens whose coordinates are columns [head_dim][64]: bit j of table
  /// l is set where the product with plane l * bits + j is positive. `planes`: simhash_planes.
  /// columns and codes at multiples of 64 bytes.
  void (*hash)(const simhash_shape& shape, const std::uint16_t* planes, const float* columns,
               std::uint16_t* codes);

  /// products [blocks * 16] of one vector [head_dim] with all planes.
  void (*project)(const simhash_shape& shape, const std::uint16_t* planes, const float* vector,
                  float* products);

  /// twice[head]: bit t is set where token t of a tile has at least two codes in common with the
  /// head. codes [tables][64] at a multiple of 64 bytes, query_codes [heads][tables].
  void (*match)(const simhash_shape& shape, const std::uint16_t* codes,
                const std::uint16_t* query_codes, std::uint32_t heads, std::uint64_t* twice);
};

extern const simhash_kernels simhash_scalar_kernels;
#ifdef KVTIER_HAVE_AVX512_BF16
extern const simhash_kernels simhash_avx512_kernels;
#endif

const simhash_kernels& simhash_kernels_for(cpu::isa_level level);

}  // namespace kvtier::lsh
