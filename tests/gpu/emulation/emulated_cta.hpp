/// Runs the bodies of the CUDA kernels on the CPU: every thread of a CTA is a fiber, and the
/// operations of a warp (ldmatrix, mma, shuffles) are carried out, lane by lane as PTX defines
/// them, once all 32 lanes have arrived. Warps advance in a seeded random order, asynchronous
/// copies land only when waited for, and shared memory starts as NaN, so that a missing wait or
/// barrier shows.
#pragma once

#include <ucontext.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "cpu/element.hpp"

namespace kvtier::gpu::emulation {

class cta;

struct float_pair {
  float x = 0.0f;
  float y = 0.0f;
};

inline std::uint16_t to_bits(element_type element, float x) {
  return element == element_type::bf16 ? bf16_from_float(x) : fp16_from_float(x);
}

inline float from_bits(element_type element, std::uint16_t x) {
  return element == element_type::bf16 ? float_from_bf16(x) : float_from_fp16(x);
}

/// What one lane hands to an operation of its warp.
struct lane_arguments {
  std::uint32_t* words = nullptr;
  const std::uint32_t* a = nullptr;
  float* sums = nullptr;
  std::uint32_t address = 0;
  std::uint32_t b[2] = {0, 0};
  float value = 0.0f;
  int mask = 0;
};

/// The CPU's counterpart of gpu_lane: the same members.
class emulated_lane {
 public:
  emulated_lane(cta& owner, std::uint32_t thread) : owner_(&owner), thread_(thread) {}

  std::uint32_t block() const;
  std::uint32_t block_y() const;
  std::uint32_t thread() const { return thread_; }
  std::uint32_t threads() const;
  std::byte* shared() const;

  void sync() const;
  void sync_warp() const;
  float shuffle_xor(float x, int mask) const;

  void copy16(std::uint32_t to, const std::byte* from, bool valid) const;
  void commit_copies() const;
  template <int Pending> void wait_copies() const {
    wait_copies(static_cast<std::size_t>(Pending));
  }

  void load_matrices(std::uint32_t (&to)[4], std::uint32_t from) const;
  void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t from) const;
  std::uint32_t transpose(std::uint32_t x) const;
  template <element_type Element>
  void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                    std::uint32_t b1) const {
    multiply_add(Element, sums, a, b0, b1);
  }

  template <element_type Element> std::uint32_t pack(float x, float y) const {
    return std::uint32_t{to_bits(Element, x)} | std::uint32_t{to_bits(Element, y)} << 16;
  }
  template <element_type Element> float_pair unpack(std::uint32_t packed) const {
    return {from_bits(Element, static_cast<std::uint16_t>(packed & 0xffffu)),
            from_bits(Element, static_cast<std::uint16_t>(packed >> 16))};
  }
  template <element_type Element> void store(void* to, std::uint64_t index, float x) const {
    from_float(Element, &x, static_cast<std::byte*>(to) + index * element_bytes(Element), 1);
  }
  float as_float(std::uint32_t bits) const { return std::bit_cast<float>(bits); }

  float product(float x, float y) const { return x * y; }
  float exp2(float x) const { return std::exp2(x); }
  float log2(float x) const { return std::log2(x); }
  float exp(float x) const { return std::exp(x); }
  float log(float x) const { return std::log(x); }

 private:
  void wait_copies(std::size_t pending) const;
  void multiply_add(element_type element, float* sums, const std::uint32_t* a, std::uint32_t b0,
                    std::uint32_t b1) const;

  cta* owner_;
  std::uint32_t thread_;
};

struct cta_shape {
  std::uint32_t block = 0;
  std::uint32_t block_y = 0;
  std::uint32_t threads = 128;
  std::size_t shared_bytes = 0;
  std::uint64_t seed = 0;  ///< of the order in which warps advance
};

/// One CTA; `run` returns when all its threads have returned from `body`. Throws std::logic_error
/// when they cannot (some wait at a barrier that others have left) and rethrows what a thread
/// threw.
class cta {
 public:
  using body = std::function<void(const emulated_lane&)>;
  explicit cta(const cta_shape& shape);
  void run(const body& kernel);

 private:
  friend class emulated_lane;
  struct pending_copy {
    std::uint32_t to;
    const std::byte* from;
    bool valid;
  };
  /// Where threads meet; `generation` counts the meetings.
  struct meeting {
    std::uint32_t arrived = 0;
    std::uint64_t generation = 0;
  };
  struct fiber {
    cta* owner = nullptr;
    std::uint32_t thread = 0;
    ucontext_t context = {};
    std::vector<std::byte> stack;
    bool finished = false;
    const meeting* waiting = nullptr;
    std::uint64_t awaited = 0;
    std::vector<pending_copy> open_group;
    std::deque<std::vector<pending_copy>> groups;
  };
  struct warp_state {
    meeting point;
    std::array<lane_arguments, 32> arguments;
  };

  static void entry(unsigned high, unsigned low);
  void resume(std::uint32_t thread);
  void yield(std::uint32_t thread);
  bool blocked(const fiber& f) const { return f.waiting && f.waiting->generation == f.awaited; }
  /// Blocks until `count` threads have come to `point`; the last one runs `action` first.
  void meet(meeting& point, std::uint32_t count, std::uint32_t thread,
            const std::function<void()>& action);
  template <class Action>
  void warp_operation(std::uint32_t thread, const lane_arguments& arguments, Action&& action) {
    warp_state& warp = warps_[thread / 32];
    warp.arguments[thread % 32] = arguments;
    meet(warp.point, 32, thread, [&] { action(warp.arguments); });
  }
  void start(std::uint32_t thread);
  [[noreturn]] void finish(std::uint32_t thread);
  /// The warps of which some thread can go on.
  std::vector<std::uint32_t> runnable_warps() const;

  cta_shape shape_;
  std::vector<std::byte> shared_;
  std::vector<std::unique_ptr<fiber>> fibers_;
  std::vector<warp_state> warps_;
  meeting barrier_;
  const body* kernel_ = nullptr;
  std::exception_ptr failure_;
  ucontext_t scheduler_ = {};
#ifdef __SANITIZE_ADDRESS__
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
#endif
};

/// Runs `kernel` for every CTA of a grid, one after the other.
void run_grid(std::uint32_t x, std::uint32_t y, cta_shape shape, const cta::body& kernel);

}  // namespace kvtier::gpu::emulation
