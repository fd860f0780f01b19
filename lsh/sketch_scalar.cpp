#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "lsh/counter_random.hpp"
#include "lsh/sketch_arithmetic.hpp"
#include "lsh/sketch_encoding.hpp"
#include "lsh/sketch_kernels.hpp"

namespace kvtier::lsh {
namespace {

// ---- Build

/// fp32 sums in token order / 64.
std::array<float, most_dims> mean_of(const float* rows, std::uint32_t dims) {
  std::array<float, most_dims> mean{};
  for (std::uint32_t token = 0; token < tile_tokens; ++token) {
    for (std::uint32_t i = 0; i < dims; ++i) {
      mean[i] = mean[i] + bounded(rows[token * dims + i]);
    }
  }
  for (float& x : mean) {
    x *= 1.0f / tile_tokens;
  }
  return mean;
}

/// Writes the code bits of one token; returns <code, x> / <code, code>.
float encode(const sketch_format& format, const std::int32_t* x, std::uint32_t token,
             std::uint8_t* planes) {
  std::int64_t norm = 0;
  for (std::uint32_t i = 0; i < format.head_dim; ++i) {
    norm += std::int64_t{x[i]} * x[i];
  }
  const std::int64_t threshold = norm * level_three;
  const std::int64_t unit = std::int64_t{format.head_dim} * 65536;
  std::int32_t product = 0;
  std::int32_t length = 0;
  for (std::uint32_t i = 0; i < format.head_dim; ++i) {
    const bool positive = x[i] >= 0;
    const bool large = format.bits == 2 && std::int64_t{x[i]} * x[i] * unit > threshold;
    const std::int32_t level = large ? 3 : 1;
    product += level * std::abs(x[i]);
    length += level * level;
    std::uint8_t* byte = planes + i / 8 * tile_tokens + token;
    *byte = static_cast<std::uint8_t>(*byte | (positive ? 1u : 0u) << i % 8);
    if (format.bits == 2) {
      byte += format.plane_bytes();
      *byte = static_cast<std::uint8_t>(*byte | (positive == large ? 1u : 0u) << i % 8);
    }
  }
  return static_cast<float>(product) / static_cast<float>(length);
}

/// Returns the unit of the scales.
float encode_keys(const sketch_rotation& rotation, const sketch_format& format, const float* keys,
                  const float* mean, std::byte* index) {
  const std::uint32_t dims = format.head_dim;
  std::vector<float> x(std::size_t{tile_tokens} * dims);
  for (std::uint32_t token = 0; token < tile_tokens; ++token) {
    float* row = x.data() + token * dims;
    std::transform(keys + token * dims, keys + (token + 1) * dims, row, bounded);
    rotate(rotation, row);
    for (std::uint32_t i = 0; i < dims; ++i) {
      row[i] -= mean[i];
    }
  }
  const int exponent = exponent_for(largest_of(x.data(), x.size()), 32767);
  std::array<float, tile_tokens> f{};
  for (std::uint32_t token = 0; token < tile_tokens; ++token) {
    std::array<std::int32_t, most_dims> rounded{};
    for (std::uint32_t i = 0; i < dims; ++i) {
      rounded[i] =
          static_cast<std::int32_t>(nearest(x[token * dims + i] * power_of_two(-exponent)));
    }
    f[token] = encode(format, rounded.data(), token, reinterpret_cast<std::uint8_t*>(index)) *
               power_of_two(exponent);
  }
  return quantise_scales(f.data(), reinterpret_cast<std::uint8_t*>(index + format.scales_at()));
}

void build(const sketch_rotation& rotation, const sketch_format& format, const float* keys,
           const float* values, std::byte* index) {
  std::fill_n(index, format.bytes(), std::byte{});
  sketch_format::tail tail{};
  auto mean = mean_of(keys, format.head_dim);
  tail.mean_exponent = quantise_mean(rotation, mean.data(),
                                     reinterpret_cast<std::int8_t*>(index + format.mean_at()));
  tail.scale_unit = encode_keys(rotation, format, keys, mean.data(), index);
  const auto value = mean_of(values, format.head_dim);
  tail.value_unit = quantise_value(value.data(), format.head_dim,
                                   reinterpret_cast<std::int8_t*>(index + format.value_at()));
  std::memcpy(index + format.tail_at(), &tail, sizeof tail);
}

// ---- Scores

/// sum of +-q over the 8 coordinates of a code byte, by byte and its value.
using byte_sums = std::array<std::int16_t, 256>;

std::size_t bytes_per_plane(const sketch_format& format) { return format.head_dim / 8; }

byte_sums sums_of(const std::int8_t* q) {
  byte_sums sums{};
  for (std::uint32_t value = 0; value < sums.size(); ++value) {
    std::int32_t sum = 0;
    for (std::uint32_t bit = 0; bit < 8; ++bit) {
      sum += (value >> bit & 1) != 0 ? q[bit] : -q[bit];
    }
    sums[value] = static_cast<std::int16_t>(sum);
  }
  return sums;
}

byte_sums* lookups_of(const sketch_query& query, std::uint32_t g) {
  return reinterpret_cast<byte_sums*>(query.lookups.data()) + g * bytes_per_plane(query.format);
}

void prepare(sketch_query& query) {
  const std::size_t bytes = bytes_per_plane(query.format);
  query.lookups = aligned_array<std::byte>(query.heads * bytes * sizeof(byte_sums));
  for (std::uint32_t g = 0; g < query.heads; ++g) {
    for (std::size_t byte = 0; byte < bytes; ++byte) {
      lookups_of(query, g)[byte] = sums_of(query.head[g].values.data() + 8 * byte);
    }
  }
}

/// <code, query> of the 64 tokens.
std::array<std::int32_t, tile_tokens> products(const sketch_query& query, std::uint32_t g,
                                               const std::uint8_t* planes) {
  const byte_sums* sums = lookups_of(query, g);
  std::array<std::int32_t, tile_tokens> total{};
  for (std::uint32_t plane = 0; plane < query.format.bits; ++plane) {
    const std::int32_t weight = query.format.bits == 2 && plane == 0 ? 2 : 1;
    for (std::size_t byte = 0; byte < bytes_per_plane(query.format); ++byte) {
      for (std::uint32_t token = 0; token < tile_tokens; ++token) {
        total[token] += weight * sums[byte][planes[token]];
      }
      planes += tile_tokens;
    }
  }
  return total;
}

float base_of(const sketch_head& head, const sketch_view& view, std::uint32_t dims) {
  std::int32_t product = 0;
  for (std::uint32_t i = 0; i < dims; ++i) {
    product += head.values[i] * view.mean()[i];
  }
  return head.score_step * (static_cast<float>(product) * power_of_two(view.mean_exponent()));
}

void score_head(const sketch_query& query, std::uint32_t g, const sketch_view& view,
                std::int16_t* scores, std::int16_t& top) {
  const sketch_head& head = query.head[g];
  const float base = base_of(head, view, query.format.head_dim);
  const auto product = products(query, g, view.planes());
  for (std::uint32_t token = 0; token < tile_tokens; ++token) {
    const float f = static_cast<float>(view.scales()[token]) * view.scale_unit();
    scores[token] = score_of(head, base, product[token], f);
    top = std::max(top, scores[token]);
  }
}

void score(const sketch_query& query, std::span<const tile_entry> tiles, std::int16_t* scores,
           std::int16_t* top) {
  for (const tile_entry& tile : tiles) {
    const sketch_view view(query.format, tile.index);
    for (std::uint32_t g = 0; g < query.heads; ++g) {
      score_head(query, g, view, scores, top[g]);
      scores += tile_tokens;
    }
  }
}

// ---- Plan and draw

void count(const std::int16_t* scores, std::size_t tiles, std::uint32_t heads,
           const std::int16_t* top, bin_counts* counts) {
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    for (std::uint32_t g = 0; g < heads; ++g) {
      for (std::uint32_t token = 0; token < tile_tokens; ++token) {
        ++counts[g][bin_of(*scores++, top[g])];
      }
    }
  }
}

void square(const sketch_query& query, const std::byte* index, const std::int16_t* scores,
            const std::int16_t* top, std::int64_t* sums) {
  const sketch_view view(query.format, index);
  for (std::uint32_t g = 0; g < query.heads; ++g) {
    sums[g] = 0;
    for (std::uint32_t token = 0; token < tile_tokens; ++token) {
      const float f = static_cast<float>(view.scales()[token]) * view.scale_unit();
      const std::uint32_t bin = bin_of(*scores++, top[g]);
      sums[g] += squared_weight[2 * bin + 6 - variance_quarters(query.head[g], f)];
    }
  }
}

std::uint16_t limit_at(const std::int16_t* scores, std::uint32_t heads, const std::int16_t* top,
                       const draw_limits* limits, std::uint32_t token) {
  std::uint16_t limit = 0;
  for (std::uint32_t g = 0; g < heads; ++g) {
    limit = std::max(limit, limits[g].at(bin_of(scores[g * tile_tokens + token], top[g])));
  }
  return limit;
}

std::uint64_t sum_limits(std::span<const std::int16_t* const> tiles, std::uint32_t heads,
                         const std::int16_t* top, const draw_limits* limits) {
  std::uint64_t sum = 0;
  for (const std::int16_t* scores : tiles) {
    for (std::uint32_t token = 0; token < tile_tokens; ++token) {
      sum += limit_at(scores, heads, top, limits, token);
    }
  }
  return sum;
}

std::uint64_t draw(const std::int16_t* scores, std::uint32_t heads, const std::int16_t* top,
                   const draw_limits* limits, std::uint32_t seed, std::uint16_t* limit_of) {
  const tile_numbers numbers(std::uint64_t{seed} << 32);
  std::uint64_t drawn = 0;
  for (std::uint32_t token = 0; token < tile_tokens; ++token) {
    limit_of[token] = limit_at(scores, heads, top, limits, token);
    drawn |= std::uint64_t{numbers.of_token(token) <= limit_of[token] ? 1u : 0u} << token;
  }
  return drawn;
}

// ---- Estimates

/// exp(-i / 64) as a product of two table entries.
struct exp_table {
  std::array<float, 1024> nats{};
  std::array<float, 64> parts{};
  exp_table() {
    for (std::size_t i = 0; i < nats.size(); ++i) {
      nats[i] = static_cast<float>(std::exp(-static_cast<double>(i)));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = static_cast<float>(std::exp(-static_cast<double>(i) / 64.0));
    }
  }
  float operator()(std::uint32_t i) const { return nats[i / 64] * parts[i % 64]; }
};

void weigh(const sketch_query& query, const std::byte* index, const std::int16_t* scores,
           const std::int16_t* top, std::uint64_t counted, float* weights, float* sums) {
  static const exp_table exp_of;
  const sketch_view view(query.format, index);
  for (std::uint32_t g = 0; g < query.heads; ++g) {
    sums[g] = 0.0f;
    for (std::uint32_t token = 0; token < tile_tokens; ++token) {
      const float f = static_cast<float>(view.scales()[token]) * view.scale_unit();
      const float excess = residual_variance(query.head[g], f) * 0.5f - 1.0f;
      float weight = exp_of(static_cast<std::uint32_t>(top[g] - *scores++));
      if (excess > 0.0f) {
        weight *= std::exp(-std::min(excess, 79.0f));
      }
      *weights++ = weight;
      sums[g] += (counted >> token & 1) != 0 ? weight : 0.0f;
    }
  }
}

void rise(const std::int16_t* scores, std::uint32_t heads, const float* weights,
          std::uint64_t counted, float* rises, float* sums) {
  for (std::uint32_t g = 0; g < heads; ++g) {
    const std::int32_t total = std::accumulate(scores, scores + tile_tokens, std::int32_t{0});
    const float mean = static_cast<float>(total) * (1.0f / tile_tokens);
    sums[g] = 0.0f;
    for (std::uint32_t token = 0; token < tile_tokens; ++token) {
      *rises = (static_cast<float>(*scores++) - mean) * (1.0f / 64.0f);
      sums[g] += (counted >> token & 1) != 0 ? *weights * *rises : 0.0f;
      ++weights;
      ++rises;
    }
  }
}

void square_weights(const sketch_query& query, const std::byte* index, const float* weights,
                    float* moments, float* sums) {
  const sketch_view view(query.format, index);
  for (std::uint32_t g = 0; g < query.heads; ++g) {
    sums[g] = 0.0f;
    for (std::uint32_t token = 0; token < tile_tokens; ++token) {
      const float f = static_cast<float>(view.scales()[token]) * view.scale_unit();
      const float variance = residual_variance(query.head[g], f);
      const float moment = *weights * *weights * std::exp(variance < 1.5f ? variance : 1.5f);
      ++weights;
      *moments++ = moment;
      sums[g] += moment;
    }
  }
}

void add_mean_values(const sketch_query& query, std::span<const std::byte* const> indexes,
                     const float* mass, float* num) {
  const std::uint32_t dims = query.format.head_dim;
  for (const std::byte* index : indexes) {
    const sketch_view view(query.format, index);
    for (std::uint32_t g = 0; g < query.heads; ++g) {
      const float unit = *mass++ * view.value_unit();
      for (std::uint32_t i = 0; i < dims; ++i) {
        num[g * dims + i] += unit * static_cast<float>(view.value()[i]);
      }
    }
  }
}

}  // namespace

const sketch_kernels sketch_scalar_kernels{build,  prepare,        score,          count,
                                           square, sum_limits,     draw,           weigh,
                                           rise,   square_weights, add_mean_values};

}  // namespace kvtier::lsh
