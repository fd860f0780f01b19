/// The rotation that keys and queries of a model share: three rounds of random signs and a
/// Walsh-Hadamard transform (sampler.md, sections 2.1 and 10.1).
#pragma once

#include <array>
#include <cstdint>

namespace kvtier::lsh {

inline constexpr std::uint32_t most_dims = 256;
inline constexpr std::uint32_t rotation_rounds = 3;

/// |Rx|^2 is 1, 2 and 1 times |x|^2 for head dims 64, 128 and 256.
struct sketch_rotation {
  /// head_dim: 64, 128 or 256.
  sketch_rotation(std::uint32_t dims, std::uint32_t seed);

  std::uint32_t head_dim;
  float scale;  ///< of the sum after the last round, a power of two
  alignas(64) std::array<std::array<float, most_dims>, rotation_rounds> signs;  ///< +-1
};

/// x <- R x, fp32 [head_dim]. Additions only, in the order of the butterflies, then a power of two:
/// every instruction set gives the same bits.
void rotate(const sketch_rotation& rotation, float* x);

}  // namespace kvtier::lsh
