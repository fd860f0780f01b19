/// The passes of simhash_kernels for a vector width. Whoever includes this gives an `Isa` of an
/// unnamed namespace, so that no other file can get the code that its flags make. An Isa has
///   floats, shorts         vectors of fp32 and of u16
///   planes, vectors        planes and vectors of tokens whose sums are kept in registers at once
///   heads                  heads that match at once
///   positive(floats)       bit i: lane i is above zero
///   at_least_two(shorts)   bit i: lane i is
///   pack(signs, bits, codes)  codes [64] from the signs of the tokens, u64 [bits]
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lsh/simhash_kernels.hpp"

namespace kvtier::lsh {

template <class Isa> struct simhash_passes {
  using floats = typename Isa::floats;
  using shorts = typename Isa::shorts;
  static constexpr std::size_t float_lanes = sizeof(floats) / sizeof(float);
  static constexpr std::size_t short_lanes = sizeof(shorts) / sizeof(std::uint16_t);
  static constexpr std::size_t most_head_dims = 256;
  static constexpr std::size_t most_bits = 16;

  template <class Vector, class Lane> static Vector load(const Lane* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
  }

  /// One block of planes in fp32, [head_dim][16].
  static void widen(const std::uint16_t* planes, std::size_t head_dim, float* to) {
    for (std::size_t i = 0; i < head_dim * plane_block; ++i) {
      to[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(planes[i]) << 16);
    }
  }

  /// Signs of the products of Isa::planes planes with Isa::vectors vectors of tokens, ored into
  /// signs at bit `token`.
  static void add_signs(const float* planes, const float* columns, std::size_t head_dim,
                        std::size_t token, std::uint64_t* signs) {
    floats sums[Isa::planes][Isa::vectors] = {};
    for (std::size_t d = 0; d < head_dim; ++d) {
      floats column[Isa::vectors];
#pragma GCC unroll 4
      for (std::size_t v = 0; v < Isa::vectors; ++v) {
        column[v] = load<floats>(columns + d * tile_tokens + v * float_lanes);
      }
#pragma GCC unroll 4
      for (std::size_t p = 0; p < Isa::planes; ++p) {
#pragma GCC unroll 4
        for (std::size_t v = 0; v < Isa::vectors; ++v) {
          sums[p][v] += planes[d * plane_block + p] * column[v];
        }
      }
    }
    for (std::size_t p = 0; p < Isa::planes; ++p) {
      for (std::size_t v = 0; v < Isa::vectors; ++v) {
        signs[p] |= Isa::positive(sums[p][v]) << (token + v * float_lanes);
      }
    }
  }

  static void hash(const simhash_shape& shape, const std::uint16_t* planes, const float* columns,
                   std::uint16_t* codes) {
    const std::size_t dims = shape.head_dim;
    constexpr std::size_t tokens = Isa::vectors * float_lanes;
    alignas(64) float wide[most_head_dims * plane_block];
    // Signs of planes whose table is not complete yet, and of one block more.
    std::uint64_t signs[most_bits + plane_block];
    std::size_t pending = 0;
    std::size_t table = 0;
    for (std::size_t block = 0; block < shape.blocks(); ++block) {
      widen(planes + block * dims * plane_block, dims, wide);
      std::memset(signs + pending, 0, plane_block * sizeof *signs);
      for (std::size_t p = 0; p < plane_block; p += Isa::planes) {
        for (std::size_t token = 0; token < tile_tokens; token += tokens) {
          add_signs(wide + p, columns + token, dims, token, signs + pending + p);
        }
      }
      pending += plane_block;
      std::size_t packed = 0;
      for (; pending - packed >= shape.bits && table < shape.tables; ++table) {
        Isa::pack(signs + packed, shape.bits, codes + table * tile_tokens);
        packed += shape.bits;
      }
      pending -= packed;
      std::memmove(signs, signs + packed, pending * sizeof *signs);
    }
  }

  static void project(const simhash_shape& shape, const std::uint16_t* planes, const float* vector,
                      float* products) {
    constexpr std::size_t vectors = plane_block / float_lanes;
    alignas(64) float wide[most_head_dims * plane_block];
    for (std::size_t block = 0; block < shape.blocks(); ++block) {
      widen(planes + block * shape.head_dim * plane_block, shape.head_dim, wide);
      floats sums[vectors] = {};
      for (std::size_t d = 0; d < shape.head_dim; ++d) {
        for (std::size_t v = 0; v < vectors; ++v) {
          sums[v] += vector[d] * load<floats>(wide + d * plane_block + v * float_lanes);
        }
      }
      std::memcpy(products + block * plane_block, sums, sizeof sums);
    }
  }

  template <std::size_t Heads>
  static void match_heads(const simhash_shape& shape, const std::uint16_t* codes,
                          const std::uint16_t* query_codes, std::uint64_t* twice) {
    constexpr std::size_t vectors = tile_tokens / short_lanes;
    shorts counts[Heads][vectors] = {};
    for (std::size_t table = 0; table < shape.tables; ++table) {
      shorts code[vectors];
#pragma GCC unroll 8
      for (std::size_t v = 0; v < vectors; ++v) {
        code[v] = load<shorts>(codes + table * tile_tokens + v * short_lanes);
      }
#pragma GCC unroll 4
      for (std::size_t head = 0; head < Heads; ++head) {
        const shorts wanted = shorts{} + query_codes[head * shape.tables + table];
#pragma GCC unroll 8
        for (std::size_t v = 0; v < vectors; ++v) {
          counts[head][v] -= reinterpret_cast<shorts>(code[v] == wanted);
        }
      }
    }
    for (std::size_t head = 0; head < Heads; ++head) {
      twice[head] = 0;
      for (std::size_t v = 0; v < vectors; ++v) {
        twice[head] |= Isa::at_least_two(counts[head][v]) << (v * short_lanes);
      }
    }
  }

  static void match(const simhash_shape& shape, const std::uint16_t* codes,
                    const std::uint16_t* query_codes, std::uint32_t heads, std::uint64_t* twice) {
    std::uint32_t head = 0;
    for (; head + Isa::heads <= heads; head += Isa::heads) {
      match_heads<Isa::heads>(shape, codes, query_codes + std::size_t{head} * shape.tables,
                              twice + head);
    }
    for (; head < heads; ++head) {
      match_heads<1>(shape, codes, query_codes + std::size_t{head} * shape.tables, twice + head);
    }
  }
};

}  // namespace kvtier::lsh
