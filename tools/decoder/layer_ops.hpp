/// The element-wise parts of a layer, fp32, parallel over rows by OpenMP like oneDNN's products.
#pragma once

#include <cstdint>
#include <span>

namespace kvtier::decoder {

/// y = x / sqrt(mean(x^2) + epsilon) * weight per row; x and y [rows][weight.size()], may be the
/// same.
void rms_norm(const float* x, std::span<const float> weight, float epsilon, std::uint32_t rows,
              float* y);

/// gate = silu(gate) * up; [rows][columns].
void swiglu(float* gate, const float* up, std::uint32_t rows, std::uint32_t columns);

}  // namespace kvtier::decoder
