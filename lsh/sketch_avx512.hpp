/// Entry points of the AVX-512 files of the sketch selector; private to lsh/. What they do:
/// sketch_kernels.hpp.
#pragma once

#include "lsh/sketch_kernels.hpp"

namespace kvtier::lsh::avx512 {

void build(const sketch_rotation& rotation, const sketch_format& format, const float* keys,
           const float* values, std::byte* index);
void prepare(sketch_query& query);
void score(const sketch_query& query, std::span<const tile_entry> tiles, std::int16_t* scores,
           std::int16_t* top);
void count(const std::int16_t* scores, std::size_t tiles, std::uint32_t heads,
           const std::int16_t* top, bin_counts* counts);
void square(const sketch_query& query, const std::byte* index, const std::int16_t* scores,
            const std::int16_t* top, std::int64_t* sums);
std::uint64_t sum_limits(std::span<const std::int16_t* const> tiles, std::uint32_t heads,
                         const std::int16_t* top, const draw_limits* limits);
std::uint64_t draw(const std::int16_t* scores, std::uint32_t heads, const std::int16_t* top,
                   const draw_limits* limits, std::uint32_t seed, std::uint16_t* limit_of);
void weigh(const sketch_query& query, const std::byte* index, const std::int16_t* scores,
           const std::int16_t* top, std::uint64_t counted, float* weights, float* sums);
void rise(const std::int16_t* scores, std::uint32_t heads, const float* weights,
          std::uint64_t counted, float* rises, float* sums);
void square_weights(const sketch_query& query, const std::byte* index, const float* weights,
                    float* moments, float* sums);
void add_mean_values(const sketch_query& query, std::span<const std::byte* const> indexes,
                     const float* mass, float* num);

}  // namespace kvtier::lsh::avx512
