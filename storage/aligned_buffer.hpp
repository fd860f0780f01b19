/// Heap memory aligned for O_DIRECT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

namespace kvtier::storage {

inline constexpr std::size_t io_alignment = 4096;

constexpr std::uint64_t round_up_to_alignment(std::uint64_t bytes) noexcept {
  return (bytes + io_alignment - 1) / io_alignment * io_alignment;
}

/// Owns `size` bytes, 4096-aligned, not initialised.
class aligned_buffer {
 public:
  explicit aligned_buffer(std::size_t size)
      : bytes_(static_cast<std::byte*>(::operator new (size, std::align_val_t{io_alignment}))),
        size_(size) {}

  std::byte* data() const noexcept { return bytes_.get(); }
  std::size_t size() const noexcept { return size_; }
  std::span<std::byte> span() const noexcept { return {bytes_.get(), size_}; }

 private:
  struct free_aligned {
    void operator()(std::byte* bytes) const noexcept {
      ::operator delete (bytes, std::align_val_t{io_alignment});
    }
  };

  std::unique_ptr<std::byte, free_aligned> bytes_;
  std::size_t size_ = 0;
};

}  // namespace kvtier::storage
