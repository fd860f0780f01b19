/// FAISS over the keys of one KV head. Private to lsh/; no FAISS header is needed to use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// The keys of a tile as its token index holds them: [64][head_dim] bf16. FAISS needs numbers that
/// do not overflow: what is not a number or infinite is 0, the rest is cut off at +-1e15.
class faiss_keys {
 public:
  explicit faiss_keys(std::uint32_t head_dim) noexcept : head_dim_(head_dim) {}

  std::uint32_t head_dim() const noexcept { return head_dim_; }
  std::size_t bytes() const noexcept;
  /// keys fp32 [64][head_dim]
  void write(const float* keys, std::byte* index) const;
  /// keys fp32 [64][head_dim]
  void read(const std::byte* index, float* keys) const noexcept;
  /// key fp32 [head_dim]
  void read_token(const std::byte* index, std::uint32_t token, float* key) const noexcept;

  static float tame(float x) noexcept;

 private:
  std::uint32_t head_dim_;
};

class faiss_content;

/// A built index. `search` may be called by several threads at once, but not along with `cover`.
/// FAISS runs on the calling thread only.
class faiss_index {
 public:
  /// `options` must be valid: kind faiss, its numbers within their bounds.
  faiss_index(const selector_config& options, std::uint32_t head_dim);
  ~faiss_index();
  faiss_index(const faiss_index&) = delete;
  faiss_index& operator=(const faiss_index&) = delete;

  /// Makes it hold the tokens of `tiles`, of which it holds the first tiles() already. What it
  /// holds, and all that it finds, then depends on their keys alone and not on the calls that led
  /// there. If it throws, nothing is held.
  void cover(std::span<const tile_entry> tiles);
  /// Tiles that it holds.
  std::size_t tiles() const noexcept;
  /// Memory in use, about.
  std::size_t bytes() const noexcept;

  /// At most k tokens, the best first: token t of the tile at position p is p * 64 + t. query fp32
  /// [head_dim], tame. k is 1 to the number of tokens held.
  std::vector<std::uint32_t> search(const float* query, std::size_t k) const;

 private:
  void start(std::span<const tile_entry> tiles, std::size_t trained);

  selector_config options_;
  faiss_keys keys_;
  std::unique_ptr<faiss_content> content_;  // null: nothing is held
  std::size_t trained_ = 0;                 // tiles it was trained with
  std::size_t held_ = 0;                    // tiles
};

}  // namespace kvtier::lsh
