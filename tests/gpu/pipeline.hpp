/// A miniature of what the runtime does with a device: every kind of wait occurs, none is
/// redundant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/gpu.hpp"

namespace kvtier::test {

/// New tokens are appended to one device slot, block after block; every block is copied to the host
/// before its slot is reused (streams `append` and `d2h`). The blocks come back through a ring of
/// two buffers, followed by blocks that lay on the host all along (stream `h2d`), and four
/// sequences attend over each buffer in turn (stream `compute`). At last host sums arrive, are
/// merged, and the result goes home.
class pipeline {
 public:
  explicit pipeline(std::uint64_t seed);

  /// Runs on `device`, synchronises, and returns the merged rows.
  std::vector<float> run(gpu::device& device) const;

  /// Whether `merged` is the answer, within the rounding of the element type.
  bool is_right(const std::vector<float>& merged) const;

  static constexpr std::uint64_t kv_bytes_needed = std::uint64_t{1} << 20;

 private:
  struct run_state;

  void append_and_store(run_state& state) const;
  void fetch_and_attend(run_state& state, std::uint32_t step) const;
  void merge_and_return(run_state& state) const;
  void expect();

  gpu::attention_shape shape_;
  std::vector<std::byte> k_, v_;                 // of the appended tokens
  std::vector<std::vector<std::byte>> on_host_;  // blocks that were never appended here
  std::vector<std::byte> q_;
  std::vector<float> sums_;  // scale [rows], den [rows], num [rows][head_dim]
  std::vector<double> expected_, tolerance_;
};

}  // namespace kvtier::test
