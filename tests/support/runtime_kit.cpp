#include "tests/support/runtime_kit.hpp"

#include <algorithm>
#include <filesystem>
#include <mutex>

namespace kvtier::test {

kv_shape small_shape() {
  return {.layers = 3,
          .query_heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .element = element_type::fp32,
          .kinds = {{}, {.window = 40}, {}}};
}

config small_config(const tier_sizes& sizes, std::uint32_t block_tokens, std::uint64_t delay_seed) {
  config options;
  options.shape = small_shape();
  options.device = gpu::device_kind::host;
  options.block_tokens = block_tokens;
  options.ring_buffer_blocks = std::max(1u, 64 / block_tokens);
  const std::uint64_t extent =
      std::max<std::uint64_t>(block_tokens, 64) * options.shape.token_bytes();
  options.device_memory = sizes.device_extents * extent;
  if (sizes.host_extents > 0) {
    options.device_memory += options.ring_buffers * extent;
    options.host_memory = sizes.host_extents * extent + (std::uint64_t{3} << 17);
  }
  if (sizes.disk_extents > 0) {
    options.disks.push_back({.directory = std::filesystem::temp_directory_path(),
                             .bytes = sizes.disk_extents * extent * 5 / 4 + 65536});
  }
  options.sinks = 64;
  options.window = 64;
  options.threads = 1;
  options.host_device = {.threads = 1, .delay_seed = delay_seed, .max_delay_us = 200};
  return options;
}

log_callback log_lines::sink() {
  return [this](log_level, std::string_view text) {
    const std::lock_guard guard(mutex_);
    lines_.emplace_back(text);
  };
}

bool log_lines::contains(std::string_view text) const {
  const std::lock_guard guard(mutex_);
  return std::any_of(lines_.begin(), lines_.end(), [text](const std::string& line) {
    return line.find(text) != std::string::npos;
  });
}

std::string log_lines::all() const {
  const std::lock_guard guard(mutex_);
  std::string text;
  for (const std::string& line : lines_) {
    text += line + "\n";
  }
  return text;
}

}  // namespace kvtier::test
