#include "tools/eval/indexed_case.hpp"

#include <chrono>
#include <cmath>

namespace kvtier::eval {

indexed_case::indexed_case(const stored_case& stored, const lsh::token_selector& selector,
                           double whole_share)
    : stored_(stored), entries_(stored.tiles()) {
  const head_case& data = stored.data();
  const std::size_t bytes = selector.index_bytes(data.layer, data.kv_head);
  bytes_ = bytes * entries_.size();
  if (bytes > 0) {
    memory_ = std::make_unique<cpu::slab>(bytes_, cpu::slab_options{});
  }
  const std::vector<float> mean =
      lsh::mean_of_keys({stored.tile_keys(0), stored.tile_keys(stored.tiles())}, data.head_dim);
  const auto begin = std::chrono::steady_clock::now();
  const auto wholes =
      static_cast<std::size_t>(std::llround(whole_share * static_cast<double>(entries_.size())));
  for (std::size_t tile = 0; tile < entries_.size(); ++tile) {
    std::byte* const index = bytes > 0 ? memory_->data() + tile * bytes : nullptr;
    if (index != nullptr) {
      selector.index_tile({.keys = stored.tile_keys(tile),
                           .values = stored.tile_values(tile),
                           .segment_mean = mean.data(),
                           .layer = data.layer,
                           .kv_head = data.kv_head},
                          index);
    }
    entries_[tile] = {.index = index, .number = tile, .sequence = 1, .whole = tile < wholes};
  }
  build_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace kvtier::eval
