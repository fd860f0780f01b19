/// Refusals of arguments, in one voice.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvtier::gpu {

[[noreturn]] inline void refuse(const std::string& text) {
  throw std::invalid_argument("CUDA device: " + text);
}

/// The kernels move 16 bytes at a time.
inline void require_aligned(const void* pointer, const std::string& name) {
  if (pointer == nullptr || reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0) {
    refuse(name + " must be a device address that is a multiple of 16");
  }
}

inline void require_present(const void* pointer, const std::string& name) {
  if (pointer == nullptr) {
    refuse(name + " is null");
  }
}

}  // namespace kvtier::gpu
