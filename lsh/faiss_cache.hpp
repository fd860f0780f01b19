/// Built FAISS indexes that are kept for the next query. Private to lsh/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include "lsh/faiss_index.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// Keeps the indexes used last, by layer, KV head and list of tiles. Thread-safe. A list is known
/// by its tiles' sequences, numbers, contents and token indexes; whether they are whole does not
/// matter.
class faiss_cache {
 public:
  /// Indexes of more than `limit` bytes together are dropped, least recently used first, but for
  /// the last one and those in use.
  faiss_cache(const selector_config& options, std::uint32_t head_dim, std::size_t limit);

  /// Calls `body` with an index of exactly the tokens of `tiles`, at least one tile. An index of
  /// the first ones of them is grown, otherwise one is built; other threads that need it wait.
  /// Passes on what FAISS throws.
  void use(std::span<const tile_entry> tiles, std::uint32_t layer, std::uint32_t kv_head,
           const std::function<void(const faiss_index&)>& body);

  /// Indexes kept.
  std::size_t size() const;

 private:
  struct entry {
    entry(const selector_config& options, std::uint32_t head_dim) : index(options, head_dim) {}

    std::uint32_t layer = 0;
    std::uint32_t kv_head = 0;
    std::vector<tile_entry> tiles;  // that index holds or is about to; only ever grows
    std::size_t bytes = 0;
    std::shared_mutex mutex;  // of index; the cache's own guards the rest
    faiss_index index;
  };

  std::shared_ptr<entry> claim(std::span<const tile_entry> tiles, std::uint32_t layer,
                               std::uint32_t kv_head);
  void account(const entry& grown, std::size_t bytes);

  const selector_config options_;
  const std::uint32_t head_dim_;
  const std::size_t limit_;
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<entry>> entries_;  // the one used last comes first
  std::size_t bytes_ = 0;                      // of entries_
};

}  // namespace kvtier::lsh
