#include "tools/decoder/layer_ops.hpp"

#include <cmath>
#include <cstddef>

#include "tools/decoder/thread_count.hpp"

namespace kvtier::decoder {

void rms_norm(const float* x, std::span<const float> weight, float epsilon, std::uint32_t rows,
              float* y) {
  const std::size_t columns = weight.size();
  const auto count = static_cast<std::ptrdiff_t>(rows);
#pragma omp parallel for if (std::uint64_t{rows} * columns >= parallel_elements)
  for (std::ptrdiff_t row = 0; row < count; ++row) {
    const float* from = x + static_cast<std::size_t>(row) * columns;
    float* to = y + static_cast<std::size_t>(row) * columns;
    double squares = 0;
    for (std::size_t i = 0; i < columns; ++i) {
      squares += static_cast<double>(from[i]) * from[i];
    }
    const double mean = squares / static_cast<double>(columns);
    const auto scale = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(epsilon)));
    for (std::size_t i = 0; i < columns; ++i) {
      to[i] = from[i] * scale * weight[i];
    }
  }
}

void swiglu(float* gate, const float* up, std::uint32_t rows, std::uint32_t columns) {
  const auto count = static_cast<std::ptrdiff_t>(rows);
#pragma omp parallel for if (std::uint64_t{rows} * columns >= parallel_elements)
  for (std::ptrdiff_t row = 0; row < count; ++row) {
    float* to = gate + static_cast<std::size_t>(row) * columns;
    const float* factor = up + static_cast<std::size_t>(row) * columns;
    for (std::uint32_t i = 0; i < columns; ++i) {
      to[i] = to[i] / (1.0f + std::exp(-to[i])) * factor[i];
    }
  }
}

}  // namespace kvtier::decoder
