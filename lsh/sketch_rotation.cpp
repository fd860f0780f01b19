#include "lsh/sketch_rotation.hpp"

#include "lsh/counter_random.hpp"

namespace kvtier::lsh {
namespace {

constexpr float scale_of(std::uint32_t head_dim) {
  return head_dim == 64 ? 0x1p-9f : head_dim == 128 ? 0x1p-10f : 0x1p-12f;
}

void transform(float* x, std::uint32_t size) {
  for (std::uint32_t half = 1; half < size; half *= 2) {
    for (std::uint32_t block = 0; block < size; block += 2 * half) {
      for (std::uint32_t i = block; i < block + half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
}

}  // namespace

sketch_rotation::sketch_rotation(std::uint32_t dims, std::uint32_t seed)
    : head_dim(dims), scale(scale_of(dims)), signs{} {
  for (std::uint32_t round = 0; round < rotation_rounds; ++round) {
    for (std::uint32_t i = 0; i < dims; ++i) {
      const std::uint32_t mixed = mix32((round * dims + i) * counter_step + seed);
      signs[round][i] = (mixed & 1) != 0 ? 1.0f : -1.0f;
    }
  }
}

void rotate(const sketch_rotation& rotation, float* x) {
  for (const auto& signs : rotation.signs) {
    for (std::uint32_t i = 0; i < rotation.head_dim; ++i) {
      x[i] *= signs[i];
    }
    transform(x, rotation.head_dim);
  }
  for (std::uint32_t i = 0; i < rotation.head_dim; ++i) {
    x[i] *= rotation.scale;
  }
}

}  // namespace kvtier::lsh
