#include "runtime/staging.hpp"

#include <numeric>

namespace kvtier {
namespace {

std::size_t align(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

std::size_t staging_pool::area_bytes(const kv_shape& shape, std::uint32_t rows) {
  const std::size_t floats = std::size_t{rows} * shape.head_dim * sizeof(float);
  return align(std::size_t{rows} * shape.head_dim * element_bytes(shape.element)) + align(floats) +
         2 * align(rows * sizeof(float)) + align(floats);
}

staging_pool::staging_pool(const kv_shape& shape, std::uint32_t rows, std::uint32_t areas,
                           gpu::device& device)
    : shape_(shape),
      rows_(rows),
      device_(device),
      memory_(area_bytes(shape, rows) * areas, {}),
      free_(areas) {
  std::iota(free_.begin(), free_.end(), 0u);
  device_.register_host(memory_.bytes());
}

staging_pool::~staging_pool() { device_.unregister_host(memory_.bytes()); }

staging_area staging_pool::acquire() {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [this] { return !free_.empty(); });
  staging_area area;
  area.number = free_.back();
  free_.pop_back();
  std::byte* at = memory_.data() + area_bytes(shape_, rows_) * area.number;
  const auto take = [&at](std::size_t bytes) {
    std::byte* here = at;
    at += align(bytes);
    return here;
  };
  const std::size_t floats = std::size_t{rows_} * shape_.head_dim * sizeof(float);
  area.query = take(std::size_t{rows_} * shape_.head_dim * element_bytes(shape_.element));
  area.query_floats = reinterpret_cast<float*>(take(floats));
  area.sums.scale = reinterpret_cast<float*>(take(rows_ * sizeof(float)));
  area.sums.den = reinterpret_cast<float*>(take(rows_ * sizeof(float)));
  area.sums.num = reinterpret_cast<float*>(take(floats));
  return area;
}

void staging_pool::release(const staging_area& area) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(area.number);
  }
  freed_.notify_one();
}

}  // namespace kvtier
