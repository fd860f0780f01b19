/// The hyperplanes of SimHash: random directions, the sides of which are the bits of a code.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "lsh/aligned_array.hpp"
#include "lsh/simhash_shape.hpp"

namespace kvtier::lsh {

/// bf16 [blocks][head_dim][16] iid N(0, 1): plane p is column p % 16 of block p / 16, bit j of
/// table l is plane l * bits + j; what fills the last block is zero. In bf16 they take half the
/// memory and half the time to stream at each query, and have the angles of fp32 ones: of 128
/// numbers, each off by at most 2^-9 of itself, independently.
using simhash_planes = aligned_array<std::uint16_t>;

/// Makes the planes of a KV head when they are first asked for, and keeps them: 2 * planes *
/// head_dim bytes each. Thread-safe.
class simhash_plane_cache {
 public:
  /// The numbers are a function of (seed, layer, KV head), or of the seed alone if `shared`.
  simhash_plane_cache(const simhash_shape& shape, std::uint32_t seed, bool shared)
      : shape_(shape), seed_(seed), shared_(shared) {}

  /// Stays valid as long as the cache.
  const simhash_planes& of(std::uint32_t layer, std::uint32_t kv_head);

 private:
  struct entry {
    std::once_flag made;
    simhash_planes planes;
  };

  entry& entry_of(std::pair<std::uint32_t, std::uint32_t> head);

  simhash_shape shape_;
  std::uint32_t seed_;
  bool shared_;
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::unique_ptr<entry>> entries_;
};

}  // namespace kvtier::lsh
