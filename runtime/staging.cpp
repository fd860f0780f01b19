#include "runtime/staging.hpp"

#include <numeric>

namespace kvtier {
namespace {

/// Hands out aligned pieces from `base` on; from null it only counts.
class carver {
 public:
  explicit carver(std::byte* base) : base_(base) {}

  template <class T> T* take(std::size_t count) {
    std::byte* here = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(here);
  }
  std::size_t used() const noexcept { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

staging_area carve(carver& from, const kv_shape& shape, std::size_t rows, bool estimates) {
  const std::size_t values = rows * shape.head_dim;
  staging_area area;
  area.query = from.take<std::byte>(values * element_bytes(shape.element));
  area.query_floats = from.take<float>(values);
  area.sums.scale = from.take<float>(rows);
  area.sums.den = from.take<float>(rows);
  area.sums.num = from.take<float>(values);
  if (estimates) {
    area.scalars = from.take<gpu::estimate_scalars>(rows);
    area.correction = from.take<float>(values);
    area.cross = from.take<float>(values);
    area.reports = from.take<gpu::row_report>(rows);
    area.window_lse = from.take<float>(rows);
  }
  return area;
}

}  // namespace

std::size_t staging_pool::area_bytes(const kv_shape& shape, std::uint32_t rows, bool estimates) {
  carver counter(nullptr);
  carve(counter, shape, rows, estimates);
  return counter.used();
}

staging_pool::staging_pool(const kv_shape& shape, std::uint32_t rows, std::uint32_t areas,
                           bool estimates, gpu::device& device)
    : shape_(shape),
      rows_(rows),
      estimates_(estimates),
      device_(device),
      memory_(area_bytes(shape, rows, estimates) * areas, {}),
      free_(areas) {
  std::iota(free_.begin(), free_.end(), 0u);
  device_.register_host(memory_.bytes());
}

staging_pool::~staging_pool() { device_.unregister_host(memory_.bytes()); }

staging_area staging_pool::acquire() {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [this] { return !free_.empty(); });
  const std::uint32_t number = free_.back();
  free_.pop_back();
  carver from(memory_.data() + area_bytes(shape_, rows_, estimates_) * number);
  staging_area area = carve(from, shape_, rows_, estimates_);
  area.number = number;
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
