/// Uninitialised memory for vector kernels.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace kvtier::lsh {

/// Owns `size` values of a trivial type at a multiple of 64 bytes; their contents are undefined.
template <class Value> class aligned_array {
  static_assert(std::is_trivial_v<Value>);

 public:
  aligned_array() noexcept = default;
  explicit aligned_array(std::size_t size)
      : values_(static_cast<Value*>(::operator new(size * sizeof(Value), alignment))),
        size_(size) {}

  Value* data() const noexcept { return values_.get(); }
  std::size_t size() const noexcept { return size_; }
  Value& operator[](std::size_t i) const noexcept { return values_.get()[i]; }

 private:
  static constexpr std::align_val_t alignment{64};
  struct release {
    void operator()(Value* values) const noexcept { ::operator delete(values, alignment); }
  };

  std::unique_ptr<Value, release> values_;
  std::size_t size_ = 0;
};

}  // namespace kvtier::lsh
