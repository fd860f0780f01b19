#include "lsh/sketch_selector.hpp"

#include <stdexcept>
#include <string>

#include "lsh/selector_checks.hpp"

namespace kvtier::lsh {
namespace {

void check_bits(const selector_config& options, const head_bits& table) {
  if (options.bits > 2) {
    throw std::invalid_argument("selector sketch: bits " + std::to_string(options.bits) +
                                " is neither 1 nor 2, nor 0 for auto");
  }
  if (options.bits == 0 && table.empty()) {
    throw std::invalid_argument(
        "selector sketch: bits=auto needs a table of the bits of each KV head; measure one, or "
        "give "
        "bits=1 or bits=2");
  }
  if (options.bits != 0 && !table.empty()) {
    throw std::invalid_argument("selector sketch: bits=" + std::to_string(options.bits) +
                                " has no use for a table of bits for " +
                                std::to_string(table.bits.size()) +
                                " heads; give bits=auto, or no table");
  }
  table.check();
}

std::uint32_t checked_dims(const selector_config& options, std::uint32_t head_dim,
                           const head_bits& table) {
  check_selector(options, head_dim);
  check_bits(options, table);
  if (options.epsilon_ppm > 0) {
    check_share("epsilon_ppm", options.epsilon_ppm);
    check_share("cap_ppm", options.cap_ppm);
  }
  return head_dim;
}

}  // namespace

sketch_selector::sketch_selector(const selector_config& options, std::uint32_t head_dim,
                                 std::uint64_t seed, cpu::isa_level level, const head_bits& bits)
    : rotation_(checked_dims(options, head_dim, bits), options.rotation_seed),
      bits_(options.bits),
      table_(bits) {
  const auto pool = std::make_shared<score_pool>();
  for (std::uint32_t i = 0; i < settings_.size(); ++i) {
    settings_[i] = {options, {head_dim, i + 1}, seed, &sketch_kernels_for(level), pool};
    settings_[i].options.bits = i + 1;
  }
}

const sketch_setting& sketch_selector::setting_of(std::uint32_t layer,
                                                  std::uint32_t kv_head) const {
  return settings_[(bits_ != 0 ? bits_ : table_.at(layer, kv_head)) - 1];
}

std::size_t sketch_selector::index_bytes(std::uint32_t layer, std::uint32_t kv_head) const {
  return setting_of(layer, kv_head).format.bytes();
}

void sketch_selector::index_tile(const tile_content& tile, std::byte* index) const {
  const sketch_setting& setting = setting_of(tile.layer, tile.kv_head);
  setting.kernels->build(rotation_, setting.format, tile.keys, tile.values, index);
}

std::unique_ptr<query_selection> sketch_selector::begin(std::span<const tile_entry> tiles,
                                                        const selector_query& query) const {
  const sketch_setting& setting = setting_of(query.layer, query.kv_head);
  check_query(query, setting.format.head_dim);
  if (query.window_mass == nullptr) {
    throw std::invalid_argument(
        "selector_query: window_mass is null; give [heads] values, "
        "no_window_mass where the window is empty");
  }
  return std::make_unique<sketch_selection>(setting, rotation_, tiles, query);
}

}  // namespace kvtier::lsh
