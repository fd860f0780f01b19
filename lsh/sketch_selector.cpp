#include "lsh/sketch_selector.hpp"

#include <stdexcept>
#include <string>

#include "lsh/selector_checks.hpp"

namespace kvtier::lsh {
namespace {

sketch_format checked_format(const selector_config& options, std::uint32_t head_dim) {
  check_selector(options, head_dim);
  if (options.bits != 1 && options.bits != 2) {
    throw std::invalid_argument("selector sketch: bits " + std::to_string(options.bits) +
                                " is neither 1 nor 2");
  }
  if (options.epsilon_ppm > 0) {
    check_share("epsilon_ppm", options.epsilon_ppm);
    check_share("cap_ppm", options.cap_ppm);
  }
  return {head_dim, options.bits};
}

}  // namespace

sketch_selector::sketch_selector(const selector_config& options, std::uint32_t head_dim,
                                 std::uint64_t seed, cpu::isa_level level)
    : rotation_(checked_format(options, head_dim).head_dim, options.rotation_seed),
      setting_{options,
               {head_dim, options.bits},
               seed,
               &sketch_kernels_for(level),
               std::make_shared<score_pool>()} {}

std::size_t sketch_selector::index_bytes() const noexcept { return setting_.format.bytes(); }

void sketch_selector::index_tile(const tile_content& tile, std::byte* index) const {
  setting_.kernels->build(rotation_, setting_.format, tile.keys, tile.values, index);
}

std::unique_ptr<query_selection> sketch_selector::begin(std::span<const tile_entry> tiles,
                                                        const selector_query& query) const {
  check_query(query, setting_.format.head_dim);
  if (query.window_mass == nullptr) {
    throw std::invalid_argument(
        "selector_query: window_mass is null; give [heads] values, "
        "no_window_mass where the window is empty");
  }
  return std::make_unique<sketch_selection>(setting_, rotation_, tiles, query);
}

}  // namespace kvtier::lsh
