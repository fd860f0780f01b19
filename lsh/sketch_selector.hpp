/// The selector `sketch`: rotated codes per tile, scores in integers, one Poisson draw for the
/// heads of a group (tests/golden/sampler/sampler.md). KV heads may differ in the bits of a code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cpu/isa.hpp"
#include "lsh/sketch_selection.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

class sketch_selector final : public token_selector {
 public:
  /// Throws std::invalid_argument where make_token_selector does.
  sketch_selector(const selector_config& options, std::uint32_t head_dim, std::uint64_t seed,
                  cpu::isa_level level, const head_bits& bits = {});

  std::size_t index_bytes(std::uint32_t layer, std::uint32_t kv_head) const override;
  void index_tile(const tile_content& tile, std::byte* index) const override;
  bool reads_keys() const noexcept override { return false; }
  std::unique_ptr<query_selection> begin(std::span<const tile_entry> tiles,
                                         const selector_query& query) const override;

 private:
  const sketch_setting& setting_of(std::uint32_t layer, std::uint32_t kv_head) const;

  sketch_rotation rotation_;
  std::array<sketch_setting, 2> settings_;  // of 1 and 2 bits
  std::uint32_t bits_;                      // 0: as the table says
  head_bits table_;
};

}  // namespace kvtier::lsh
