/// Host memory through which queries come down, sums go up and reports come down again: a few
/// registered areas, lent to one attend call at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "cpu/attention.hpp"
#include "cpu/slab.hpp"
#include "gpu/device.hpp"
#include "runtime/kv_shape.hpp"

namespace kvtier {

/// One area for up to `rows` (query token, query head) rows. The last five are null in a pool
/// without estimates.
struct staging_area {
  std::byte* query = nullptr;                ///< [rows][head_dim], shape.element
  float* query_floats = nullptr;             ///< the same as fp32
  cpu::scaled_sums sums;                     ///< scale [rows], den [rows], num [rows][head_dim]
  gpu::estimate_scalars* scalars = nullptr;  ///< [rows]
  float* correction = nullptr;               ///< [rows][head_dim]
  float* cross = nullptr;                    ///< [rows][head_dim]
  gpu::row_report* reports = nullptr;        ///< [rows], from the device
  float* window_lse = nullptr;               ///< [rows] of the device's partial, from the device
  std::uint32_t number = 0;
};

/// Thread-safe.
class staging_pool {
 public:
  /// `areas` areas of `rows` rows. Registered with the device where it can.
  staging_pool(const kv_shape& shape, std::uint32_t rows, std::uint32_t areas, bool estimates,
               gpu::device& device);
  ~staging_pool();
  staging_pool(const staging_pool&) = delete;
  staging_pool& operator=(const staging_pool&) = delete;

  /// Bytes of one area of `rows` rows.
  static std::size_t area_bytes(const kv_shape& shape, std::uint32_t rows, bool estimates);

  std::uint32_t rows() const noexcept { return rows_; }
  std::size_t bytes() const noexcept { return memory_.size(); }
  /// Waits for a free area.
  staging_area acquire();
  void release(const staging_area& area);

 private:
  const kv_shape& shape_;
  const std::uint32_t rows_;
  const bool estimates_;
  gpu::device& device_;
  cpu::slab memory_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<std::uint32_t> free_;
};

}  // namespace kvtier
