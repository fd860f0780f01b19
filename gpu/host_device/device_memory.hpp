/// The memory of a host device: a capped arena for KV and counted allocations beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/device.hpp"
#include "gpu/host_device/point.hpp"

namespace kvtier::gpu {

/// Keeps the books and owns the bytes; poison and the order of streams are the device's business.
/// Freed KV memory is handed out again at once; who gets it must first wait for the points that it
/// was freed at (grant::after). Sizes are rounded up to 256 bytes. Thread-safe.
class device_memory {
 public:
  static constexpr std::size_t alignment = 256;

  struct grant {
    std::byte* data = nullptr;
    std::vector<shared_point> after;  ///< where earlier owners on other streams end
  };

  /// `total_bytes`: what the device has in all. Throws out_of_memory if the cap exceeds it or the
  /// arena cannot be mapped.
  device_memory(std::uint64_t kv_cap_bytes, std::uint64_t total_bytes);
  ~device_memory();
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;

  /// `order` is compared only. Throws out_of_memory.
  grant allocate(std::size_t bytes, memory_use use, const stream& order);

  struct activation_free {
    void operator()(std::byte* data) const noexcept;
  };
  /// The bytes of an allocation of memory_use::activation.
  using activation_memory = std::unique_ptr<std::byte, activation_free>;

  /// Ends the allocation at `data`. KV memory is in use until `order` reaches `freed`; an
  /// activation's bytes go to the caller, who keeps them until then.
  activation_memory retire(std::byte* data, const stream& order, shared_point freed);

  device_memory_counters counters() const;

  /// Checks pointers against the live allocations of one moment; hold it only during one call.
  class checker {
   public:
    /// `call` names the device function in errors.
    checker(const device_memory& memory, const char* call);

    /// Throws std::invalid_argument unless [at, at + bytes) lies in one live allocation.
    void device_range(const void* at, std::size_t bytes, const char* argument);
    /// Throws std::invalid_argument if `at` is null or [at, at + bytes) touches device memory.
    void host_range(const void* at, std::size_t bytes, const char* argument);

   private:
    const device_memory& memory_;
    const char* call_;
    std::unique_lock<std::mutex> lock_;
    std::uintptr_t hit_begin_ = 0, hit_end_ = 0;  // the allocation found last
  };

 private:
  struct allocation {
    std::size_t bytes;
    memory_use use;
    activation_memory owned;  // null for KV, which the arena owns
  };
  struct pending_free {
    shared_point freed;
    const stream* order;
  };
  struct hole {
    std::size_t bytes;
    std::vector<pending_free> pending;
  };
  using hole_map = std::map<std::uintptr_t, hole>;

  grant allocate_kv(std::size_t bytes, const stream& order);
  static activation_memory allocate_activation(std::size_t bytes);
  void give_back(std::uintptr_t begin, hole returned);

  mutable std::mutex mutex_;
  std::byte* arena_ = nullptr;
  std::size_t arena_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
  std::map<std::uintptr_t, allocation> live_;  // by address
  hole_map holes_;  // free parts of the arena, by address, never adjacent
  device_memory_counters counters_;
};

}  // namespace kvtier::gpu
