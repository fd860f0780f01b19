/// Packs several lists into one block for one copy to the device.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace kvtier::gpu {

/// Sections are 256-byte aligned. Two passes: `add` everything, then `write` into memory of
/// `bytes()`.
class upload_layout {
 public:
  /// Returns the section's offset. `items` must live until `write`.
  template <class Item> std::size_t add(const std::vector<Item>& items) {
    return add(items.data(), items.size() * sizeof(Item));
  }
  std::size_t bytes() const noexcept { return bytes_; }

  void write(std::byte* to) const {
    for (const section& part : sections_) {
      if (part.bytes > 0) {
        std::memcpy(to + part.offset, part.data, part.bytes);
      }
    }
  }

 private:
  struct section {
    std::size_t offset;
    const void* data;
    std::size_t bytes;
  };

  std::size_t add(const void* data, std::size_t bytes) {
    const std::size_t offset = bytes_;
    sections_.push_back({offset, data, bytes});
    bytes_ = (offset + bytes + 255) / 256 * 256;
    return offset;
  }

  std::vector<section> sections_;
  std::size_t bytes_ = 0;
};

}  // namespace kvtier::gpu
