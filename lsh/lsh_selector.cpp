#include "lsh/lsh_selector.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

#include "lsh/selector_checks.hpp"

namespace kvtier::lsh {
namespace {

void check_range(const char* name, std::uint32_t value, std::uint32_t least, std::uint32_t most) {
  if (value < least || value > most) {
    throw std::invalid_argument("selector lsh: " + std::string(name) + " " + std::to_string(value) +
                                " is not between " + std::to_string(least) + " and " +
                                std::to_string(most));
  }
}

simhash_shape checked_shape(const selector_config& options, std::uint32_t head_dim) {
  check_selector(options, head_dim);
  check_range("hash_bits", options.hash_bits, 1, 16);
  check_range("hash_tables", options.hash_tables, 2, 1024);
  return {head_dim, options.hash_bits, options.hash_tables};
}

}  // namespace

lsh_selector::lsh_selector(const selector_config& options, std::uint32_t head_dim,
                           cpu::isa_level level)
    : setting_{checked_shape(options, head_dim), &simhash_kernels_for(level), nullptr,
               options.query_aware},
      planes_(std::make_unique<simhash_plane_cache>(setting_.shape, options.rotation_seed,
                                                    options.shared_planes)) {
  setting_.odds = std::make_shared<angle_odds>(setting_.shape);
}

void lsh_selector::index_tile(const tile_content& tile, std::byte* index) const {
  const simhash_shape& shape = setting_.shape;
  const std::size_t dims = shape.head_dim;
  auto* const codes = reinterpret_cast<std::uint16_t*>(index);
  auto* const norms = reinterpret_cast<float*>(index + shape.norms_at());
  auto* const centre = reinterpret_cast<float*>(index + shape.centre_at());
  for (std::size_t d = 0; d < dims; ++d) {
    const bool known = tile.segment_mean != nullptr && std::isfinite(tile.segment_mean[d]);
    centre[d] = known ? tile.segment_mean[d] : 0.0f;
  }
  const aligned_array<float> columns(dims * tile_tokens);
  for (std::size_t token = 0; token < tile_tokens; ++token) {
    double square = 0.0;
    for (std::size_t d = 0; d < dims; ++d) {
      const float x = tile.keys[token * dims + d] - centre[d];
      columns[d * tile_tokens + token] = x;
      square += double{x} * double{x};
    }
    norms[token] = static_cast<float>(std::sqrt(square));
  }
  setting_.kernels->hash(shape, planes_->of(tile.layer, tile.kv_head).data(), columns.data(),
                         codes);
}

std::unique_ptr<query_selection> lsh_selector::begin(std::span<const tile_entry> tiles,
                                                     const selector_query& query) const {
  check_query(query, setting_.shape.head_dim);
  return std::make_unique<simhash_selection>(setting_, planes_->of(query.layer, query.kv_head),
                                             tiles, query);
}

}  // namespace kvtier::lsh
