// The passes over hashes for any CPU: vectors of 16 bytes, which a compiler takes apart where there
// are none.
#include "lsh/simhash_passes.hpp"

namespace kvtier::lsh {
namespace {

struct portable {
  using floats = float __attribute__((vector_size(16)));
  using shorts = std::uint16_t __attribute__((vector_size(16)));
  static constexpr std::size_t planes = 2;
  static constexpr std::size_t vectors = 4;
  static constexpr std::uint32_t heads = 1;

  static std::uint64_t positive(floats x) {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < sizeof x / sizeof(float); ++i) {
      mask |= std::uint64_t{x[i] > 0.0f} << i;
    }
    return mask;
  }

  static std::uint64_t at_least_two(shorts x) {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < sizeof x / sizeof(std::uint16_t); ++i) {
      mask |= std::uint64_t{x[i] >= 2} << i;
    }
    return mask;
  }

  static void pack(const std::uint64_t* signs, std::uint32_t bits, std::uint16_t* codes) {
    for (std::uint32_t token = 0; token < tile_tokens; ++token) {
      std::uint32_t code = 0;
      for (std::uint32_t j = 0; j < bits; ++j) {
        code |= static_cast<std::uint32_t>(signs[j] >> token & 1) << j;
      }
      codes[token] = static_cast<std::uint16_t>(code);
    }
  }
};

using passes = simhash_passes<portable>;

}  // namespace

const simhash_kernels simhash_scalar_kernels{passes::hash, passes::project, passes::match};

}  // namespace kvtier::lsh
