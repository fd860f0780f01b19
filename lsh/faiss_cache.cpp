#include "lsh/faiss_cache.hpp"

#include <algorithm>
#include <utility>

namespace kvtier::lsh {
namespace {

bool same_tile(const tile_entry& a, const tile_entry& b) {
  return a.sequence == b.sequence && a.number == b.number && a.content == b.content &&
         a.index == b.index;
}

bool begins_with(std::span<const tile_entry> list, std::span<const tile_entry> first) {
  return first.size() <= list.size() &&
         std::equal(first.begin(), first.end(), list.begin(), same_tile);
}

}  // namespace

faiss_cache::faiss_cache(const selector_config& options, std::uint32_t head_dim, std::size_t limit)
    : options_(options), head_dim_(head_dim), limit_(limit) {}

std::size_t faiss_cache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

/// The entry whose list is the longest that `tiles` begins with, or a new one. Its list is `tiles`
/// from now on.
std::shared_ptr<faiss_cache::entry> faiss_cache::claim(std::span<const tile_entry> tiles,
                                                       std::uint32_t layer, std::uint32_t kv_head) {
  const std::lock_guard lock(mutex_);
  auto best = entries_.end();
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    const entry& known = **at;
    if (known.layer == layer && known.kv_head == kv_head && begins_with(tiles, known.tiles) &&
        (best == entries_.end() || known.tiles.size() > (*best)->tiles.size())) {
      best = at;
    }
  }
  if (best == entries_.end()) {
    auto made = std::make_shared<entry>(options_, head_dim_);
    made->layer = layer;
    made->kv_head = kv_head;
    best = entries_.insert(entries_.begin(), std::move(made));
  }
  (*best)->tiles.assign(tiles.begin(), tiles.end());
  entries_.splice(entries_.begin(), entries_, best);
  return entries_.front();
}

void faiss_cache::account(const entry& grown, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (const auto& kept : entries_) {
    if (kept.get() == &grown) {
      bytes_ += bytes - kept->bytes;
      kept->bytes = bytes;
    }
  }
  while (bytes_ > limit_ && entries_.size() > 1) {
    bytes_ -= entries_.back()->bytes;
    entries_.pop_back();
  }
}

void faiss_cache::use(std::span<const tile_entry> tiles, std::uint32_t layer, std::uint32_t kv_head,
                      const std::function<void(const faiss_index&)>& body) {
  while (true) {
    const std::shared_ptr<entry> mine = claim(tiles, layer, kv_head);
    {
      const std::shared_lock reading(mine->mutex);
      if (mine->index.tiles() == tiles.size()) {
        body(mine->index);
        return;
      }
    }
    std::size_t bytes = 0;
    {
      // An entry's lists begin with each other: what it holds, if it is less, is the beginning of
      // `tiles`. If it is more, somebody has grown it meanwhile, and it is of no use here.
      const std::unique_lock writing(mine->mutex);
      if (mine->index.tiles() < tiles.size()) {
        mine->index.cover(tiles);
      }
      bytes = mine->index.bytes();
    }
    account(*mine, bytes);
  }
}

}  // namespace kvtier::lsh
