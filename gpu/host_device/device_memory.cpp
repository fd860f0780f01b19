#include "gpu/host_device/device_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvtier::gpu {
namespace {

std::uintptr_t address(const void* at) noexcept { return reinterpret_cast<std::uintptr_t>(at); }

std::size_t round_up(std::size_t bytes) noexcept {
  return (bytes + device_memory::alignment - 1) / device_memory::alignment *
         device_memory::alignment;
}

std::string hex(std::uintptr_t value) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), digits[value % 16]);
    value /= 16;
  } while (value != 0);
  return "0x" + text;
}

}  // namespace

device_memory::device_memory(std::uint64_t kv_cap_bytes, std::uint64_t total_bytes)
    : arena_bytes_(kv_cap_bytes / alignment * alignment), total_bytes_(total_bytes) {
  counters_.kv_cap_bytes = kv_cap_bytes;
  if (kv_cap_bytes > total_bytes) {
    throw out_of_memory("kv_cap_bytes of " + std::to_string(kv_cap_bytes) +
                            " bytes exceeds the host device's memory of " +
                            std::to_string(total_bytes) + " bytes; ask for less device memory",
                        kv_cap_bytes, total_bytes);
  }
  if (arena_bytes_ == 0) {
    return;
  }
  void* mapping = ::mmap(nullptr, arena_bytes_, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    throw out_of_memory("cannot map " + std::to_string(arena_bytes_) +
                            " bytes for the host device: " + std::strerror(errno),
                        arena_bytes_, 0);
  }
  arena_ = static_cast<std::byte*>(mapping);
  holes_.emplace(address(arena_), hole{arena_bytes_, {}});
}

device_memory::~device_memory() {
  if (arena_ != nullptr) {
    ::munmap(arena_, arena_bytes_);
  }
}

device_memory::grant device_memory::allocate(std::size_t bytes, memory_use use,
                                             const stream& order) {
  const std::lock_guard lock(mutex_);
  const std::size_t available =
      use == memory_use::kv
          ? counters_.kv_cap_bytes - counters_.kv_bytes
          : total_bytes_ - std::min<std::uint64_t>(
                               total_bytes_, counters_.kv_cap_bytes + counters_.activation_bytes);
  if (bytes > available || round_up(bytes) > available) {
    throw out_of_memory(
        "allocate: " + std::to_string(bytes) + " bytes of " +
            (use == memory_use::kv ? "KV memory asked for, " : "activation memory asked for, ") +
            std::to_string(available) + " available; free some or raise the device memory",
        bytes, available);
  }
  bytes = round_up(bytes);
  if (use == memory_use::kv) {
    grant given = allocate_kv(bytes, order);
    live_.emplace(address(given.data), allocation{bytes, use, nullptr});
    counters_.kv_bytes += bytes;
    counters_.kv_peak_bytes = std::max(counters_.kv_peak_bytes, counters_.kv_bytes);
    return given;
  }
  activation_memory owned = allocate_activation(bytes);
  std::byte* const data = owned.get();
  live_.emplace(address(data), allocation{bytes, use, std::move(owned)});
  counters_.activation_bytes += bytes;
  counters_.activation_peak_bytes =
      std::max(counters_.activation_peak_bytes, counters_.activation_bytes);
  return {data, {}};
}

device_memory::grant device_memory::allocate_kv(std::size_t bytes, const stream& order) {
  const auto fits = [bytes](const hole_map::value_type& entry) {
    return entry.second.bytes >= bytes;
  };
  const auto found = std::find_if(holes_.begin(), holes_.end(), fits);
  if (found == holes_.end()) {
    std::size_t largest = 0;
    for (const auto& [begin, free_part] : holes_) {
      largest = std::max(largest, free_part.bytes);
    }
    throw out_of_memory("allocate: " + std::to_string(bytes) +
                            " bytes of KV memory asked for; enough is free, but the largest "
                            "contiguous part has " +
                            std::to_string(largest) + " bytes; allocate large slabs first",
                        bytes, largest);
  }
  const std::uintptr_t begin = found->first;
  hole rest = std::move(found->second);
  holes_.erase(found);
  grant given{reinterpret_cast<std::byte*>(begin), {}};
  for (const pending_free& pending : rest.pending) {
    if (pending.order != &order && !pending.freed->reached()) {
      given.after.push_back(pending.freed);
    }
  }
  if (rest.bytes > bytes) {
    rest.bytes -= bytes;
    holes_.emplace(begin + bytes, std::move(rest));
  }
  return given;
}

device_memory::activation_memory device_memory::allocate_activation(std::size_t bytes) {
  try {
    return {static_cast<std::byte*>(::operator new (bytes, std::align_val_t{alignment})), {}};
  } catch (const std::bad_alloc&) {
    throw out_of_memory("allocate: the host has no " + std::to_string(bytes) +
                            " bytes for activations; free some memory",
                        bytes, 0);
  }
}

void device_memory::activation_free::operator()(std::byte* data) const noexcept {
  ::operator delete (data, std::align_val_t{alignment});
}

device_memory::activation_memory device_memory::retire(std::byte* data, const stream& order,
                                                       shared_point freed) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(address(data));
  allocation ended = std::move(found->second);
  live_.erase(found);
  if (ended.use == memory_use::activation) {
    counters_.activation_bytes -= ended.bytes;
  } else {
    counters_.kv_bytes -= ended.bytes;
    give_back(address(data), hole{ended.bytes, {pending_free{std::move(freed), &order}}});
  }
  return std::move(ended.owned);
}

void device_memory::give_back(std::uintptr_t begin, hole returned) {
  const auto absorb = [&returned](hole& neighbour) {
    returned.bytes += neighbour.bytes;
    for (pending_free& pending : neighbour.pending) {
      if (!pending.freed->reached()) {
        returned.pending.push_back(std::move(pending));
      }
    }
  };
  auto next = holes_.lower_bound(begin);
  if (next != holes_.end() && next->first == begin + returned.bytes) {
    absorb(next->second);
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second.bytes == begin) {
      begin = previous->first;
      absorb(previous->second);
      holes_.erase(previous);
    }
  }
  holes_.emplace(begin, std::move(returned));
}

device_memory_counters device_memory::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

device_memory::checker::checker(const device_memory& memory, const char* call)
    : memory_(memory), call_(call), lock_(memory.mutex_) {}

void device_memory::checker::device_range(const void* at, std::size_t bytes, const char* argument) {
  const std::uintptr_t begin = address(at);
  const auto within = [&] {
    return begin >= hit_begin_ && begin < hit_end_ && bytes <= hit_end_ - begin;
  };
  if (within()) {
    return;
  }
  const auto after = memory_.live_.upper_bound(begin);
  if (after != memory_.live_.begin()) {
    const auto& [start, owned] = *std::prev(after);
    hit_begin_ = start;
    hit_end_ = start + owned.bytes;
  }
  if (!within()) {
    throw std::invalid_argument(std::string(call_) + ": " + argument + " = " + hex(begin) + " (" +
                                std::to_string(bytes) +
                                " bytes) does not lie in a live allocation of this device");
  }
}

void device_memory::checker::host_range(const void* at, std::size_t bytes, const char* argument) {
  const std::uintptr_t begin = address(at);
  const std::uintptr_t end = begin + bytes;
  const std::uintptr_t arena_begin = address(memory_.arena_);
  bool touches = begin < arena_begin + memory_.arena_bytes_ && arena_begin < end;
  const auto after = memory_.live_.lower_bound(end);
  if (after != memory_.live_.begin()) {
    const auto& [start, owned] = *std::prev(after);
    touches = touches || begin < start + owned.bytes;
  }
  if (at == nullptr || touches) {
    throw std::invalid_argument(
        std::string(call_) + ": " + argument + " = " + hex(begin) + " (" + std::to_string(bytes) +
        (at == nullptr ? " bytes) is null" : " bytes) is device memory, host memory is wanted"));
  }
}

}  // namespace kvtier::gpu
