/// A slab: one page-aligned host allocation, placed on a NUMA node, that tiers carve slots from and
/// that devices and io backends may register.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>

namespace kvtier::cpu {

struct slab_options {
  std::int32_t numa_node = -1;  ///< OS index to place on, preferred over others; -1 = first touch
  bool huge_pages = true;       ///< ask for transparent huge pages (advice; ignored where refused)
  bool dont_dump = true;        ///< leave the bytes out of core dumps
};

/// Host memory could not be had; what() names the bytes asked for and the system's reason.
class slab_error : public std::bad_alloc {
 public:
  explicit slab_error(const std::string& what);
  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<const std::string> what_;  // shared: copying an exception must not throw
};

/// Owns anonymous mapped memory, 2 MiB aligned, zero-filled, freed on destruction. Move-only: a
/// copy would leave two owners of memory that a device may have pinned.
class slab {
 public:
  slab() noexcept = default;
  /// Maps `bytes` (0 gives an empty slab). Throws slab_error when the kernel refuses, and
  /// std::invalid_argument when the NUMA node does not exist. A sandbox that forbids placement
  /// (EPERM, ENOSYS) is no error: the pages then lie where they are first touched.
  slab(std::size_t bytes, const slab_options& options);
  ~slab();
  slab(slab&& other) noexcept;
  slab& operator=(slab&& other) noexcept;
  slab(const slab&) = delete;
  slab& operator=(const slab&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::span<std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;  // 2 MiB aligned, inside the mapping
  std::size_t size_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
};

}  // namespace kvtier::cpu
