#include "lsh/sketch_query.hpp"

#include <cmath>

#include "lsh/sketch_arithmetic.hpp"
#include "lsh/sketch_tables.hpp"

namespace kvtier::lsh {
namespace {

constexpr float largest_value = 31.0f;

sketch_head make_head(const sketch_format& format, const sketch_rotation& rotation,
                      const float* values) {
  std::array<float, most_dims> rotated{};
  const std::uint32_t dims = format.head_dim;
  for (std::uint32_t i = 0; i < dims; ++i) {
    rotated[i] = bounded(values[i]);
  }
  rotate(rotation, rotated.data());
  float maximum = smallest_maximum;
  for (std::uint32_t i = 0; i < dims; ++i) {
    maximum = std::max(maximum, std::abs(rotated[i]));
  }
  sketch_head head{};
  const float inverse = largest_value / maximum;
  std::int32_t squares = 0;
  for (std::uint32_t i = 0; i < dims; ++i) {
    head.values[i] = static_cast<std::int8_t>(nearest(rotated[i] * inverse));
    squares += head.values[i] * head.values[i];
    head.sum += head.values[i];
    head.size += std::abs(head.values[i]);
  }
  const float step = maximum / largest_value;
  const by_dim& residual_unit = format.bits == 1 ? residual_unit_1bit : residual_unit_2bit;
  const float logit_step = step * logit_unit[dims];
  head.score_step = 64.0f * logit_step;
  head.residual = residual_unit[dims] * (static_cast<float>(squares) * step);
  head.variance_unit = 2.0f * (logit_step * head.residual);
  return head;
}

}  // namespace

sketch_query make_sketch_query(const sketch_format& format, const sketch_rotation& rotation,
                               const selector_query& query) {
  sketch_query made;
  made.format = format;
  made.heads = query.heads;
  for (std::uint32_t g = 0; g < query.heads; ++g) {
    made.head[g] = make_head(format, rotation, query.values + g * format.head_dim);
  }
  return made;
}

}  // namespace kvtier::lsh
