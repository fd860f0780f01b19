#include "tests/gpu/emulation/emulated_cta.hpp"

#include <stdexcept>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvtier::gpu::emulation {
namespace {

constexpr std::size_t stack_bytes = std::size_t{64} << 10;

using matrix = std::array<std::array<std::uint16_t, 8>, 8>;

std::uint16_t half_of(std::uint32_t word, std::uint32_t half) {
  return static_cast<std::uint16_t>(word >> (16 * half));
}

/// Lane l holds elements 2 (l % 4) and + 1 of row l / 4.
std::uint32_t word_of(const matrix& m, std::uint32_t lane) {
  const std::uint32_t row = lane / 4;
  const std::uint32_t column = lane % 4 * 2;
  return std::uint32_t{m[row][column]} | std::uint32_t{m[row][column + 1]} << 16;
}

matrix transposed(const matrix& m) {
  matrix t;
  for (std::size_t r = 0; r < 8; ++r) {
    for (std::size_t c = 0; c < 8; ++c) {
      t[c][r] = m[r][c];
    }
  }
  return t;
}

/// mma.m16n8k16: A has rows l / 4 and + 8, columns 2 (l % 4) and + 8; B has rows 2 (l % 4) and + 8,
/// column l / 4; the sums are laid out as A's rows and columns 2 (l % 4).
void multiply(element_type element, std::array<lane_arguments, 32>& lanes) {
  double a[16][16];
  double b[16][8];
  for (std::uint32_t l = 0; l < 32; ++l) {
    const std::uint32_t row = l / 4;
    const std::uint32_t column = l % 4 * 2;
    for (std::uint32_t i = 0; i < 4; ++i) {
      for (std::uint32_t e = 0; e < 2; ++e) {
        a[row + i % 2 * 8][column + i / 2 * 8 + e] =
            static_cast<double>(from_bits(element, half_of(lanes[l].a[i], e)));
      }
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
      for (std::uint32_t e = 0; e < 2; ++e) {
        b[column + i * 8 + e][row] =
            static_cast<double>(from_bits(element, half_of(lanes[l].b[i], e)));
      }
    }
  }
  for (std::uint32_t l = 0; l < 32; ++l) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t row = l / 4 + i / 2 * 8;
      const std::uint32_t column = l % 4 * 2 + i % 2;
      double sum = static_cast<double>(lanes[l].sums[i]);
      for (std::uint32_t k = 0; k < 16; ++k) {
        sum += a[row][k] * b[k][column];
      }
      lanes[l].sums[i] = static_cast<float>(sum);
    }
  }
}

void load(const std::byte* shared, bool transpose, std::array<lane_arguments, 32>& lanes) {
  for (std::uint32_t i = 0; i < 4; ++i) {
    matrix m;
    for (std::uint32_t r = 0; r < 8; ++r) {
      std::memcpy(m[r].data(), shared + lanes[i * 8 + r].address, 16);
    }
    if (transpose) {
      m = transposed(m);
    }
    for (std::uint32_t l = 0; l < 32; ++l) {
      lanes[l].words[i] = word_of(m, l);
    }
  }
}

}  // namespace

std::uint32_t emulated_lane::block() const { return owner_->shape_.block; }
std::uint32_t emulated_lane::block_y() const { return owner_->shape_.block_y; }
std::uint32_t emulated_lane::threads() const { return owner_->shape_.threads; }
std::byte* emulated_lane::shared() const { return owner_->shared_.data(); }

void emulated_lane::sync() const {
  owner_->meet(owner_->barrier_, owner_->shape_.threads, thread_, [] {});
}

void emulated_lane::sync_warp() const {
  owner_->warp_operation(thread_, {}, [](auto&) {});
}

float emulated_lane::shuffle_xor(float x, int mask) const {
  float result = 0.0f;
  lane_arguments arguments;
  arguments.value = x;
  arguments.mask = mask;
  arguments.sums = &result;
  owner_->warp_operation(thread_, arguments, [](std::array<lane_arguments, 32>& lanes) {
    for (std::uint32_t l = 0; l < 32; ++l) {
      *lanes[l].sums = lanes[l ^ static_cast<std::uint32_t>(lanes[l].mask)].value;
    }
  });
  return result;
}

void emulated_lane::copy16(std::uint32_t to, const std::byte* from, bool valid) const {
  if (to % 16 != 0 || to + 16 > owner_->shared_.size() ||
      reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    throw std::logic_error("a 16-byte copy is misaligned or outside of shared memory");
  }
  owner_->fibers_[thread_]->open_group.push_back({to, from, valid});
}

void emulated_lane::commit_copies() const {
  cta::fiber& self = *owner_->fibers_[thread_];
  self.groups.push_back(std::move(self.open_group));
  self.open_group.clear();
}

void emulated_lane::wait_copies(std::size_t pending) const {
  cta::fiber& self = *owner_->fibers_[thread_];
  while (self.groups.size() > pending) {
    for (const cta::pending_copy& copy : self.groups.front()) {
      std::byte* to = owner_->shared_.data() + copy.to;
      if (copy.valid) {
        std::memcpy(to, copy.from, 16);
      } else {
        std::memset(to, 0, 16);
      }
    }
    self.groups.pop_front();
  }
}

void emulated_lane::load_matrices(std::uint32_t (&to)[4], std::uint32_t from) const {
  lane_arguments arguments;
  arguments.words = to;
  arguments.address = from;
  owner_->warp_operation(thread_, arguments,
                         [&](auto& lanes) { load(owner_->shared_.data(), false, lanes); });
}

void emulated_lane::load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t from) const {
  lane_arguments arguments;
  arguments.words = to;
  arguments.address = from;
  owner_->warp_operation(thread_, arguments,
                         [&](auto& lanes) { load(owner_->shared_.data(), true, lanes); });
}

std::uint32_t emulated_lane::transpose(std::uint32_t x) const {
  std::uint32_t result = 0;
  lane_arguments arguments;
  arguments.b[0] = x;
  arguments.words = &result;
  owner_->warp_operation(thread_, arguments, [](std::array<lane_arguments, 32>& lanes) {
    matrix m;
    for (std::uint32_t l = 0; l < 32; ++l) {
      for (std::uint32_t e = 0; e < 2; ++e) {
        m[l / 4][l % 4 * 2 + e] = half_of(lanes[l].b[0], e);
      }
    }
    m = transposed(m);
    for (std::uint32_t l = 0; l < 32; ++l) {
      *lanes[l].words = word_of(m, l);
    }
  });
  return result;
}

void emulated_lane::multiply_add(element_type element, float* sums, const std::uint32_t* a,
                                 std::uint32_t b0, std::uint32_t b1) const {
  lane_arguments arguments;
  arguments.sums = sums;
  arguments.a = a;
  arguments.b[0] = b0;
  arguments.b[1] = b1;
  owner_->warp_operation(thread_, arguments, [&](auto& lanes) { multiply(element, lanes); });
}

cta::cta(const cta_shape& shape)
    : shape_(shape), shared_(shape.shared_bytes, std::byte{0xff}), warps_(shape.threads / 32) {
  for (std::uint32_t t = 0; t < shape.threads; ++t) {
    fibers_.push_back(std::make_unique<fiber>());
    fibers_.back()->owner = this;
    fibers_.back()->thread = t;
    fibers_.back()->stack.resize(stack_bytes);
  }
}

void cta::entry(unsigned high, unsigned low) {
  // makecontext passes ints only: the fiber's address travels in two of them.
  const fiber& self = *reinterpret_cast<fiber*>(std::uint64_t{high} << 32 | low);
  cta& owner = *self.owner;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &owner.scheduler_stack_, &owner.scheduler_stack_bytes_);
#endif
  try {
    (*owner.kernel_)(emulated_lane(owner, self.thread));
  } catch (...) {
    owner.failure_ = std::current_exception();
  }
  owner.finish(self.thread);
}

void cta::resume(std::uint32_t thread) {
  fiber& f = *fibers_[thread];
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, f.stack.data(), f.stack.size());
#endif
  swapcontext(&scheduler_, &f.context);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void cta::yield(std::uint32_t thread) {
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, scheduler_stack_, scheduler_stack_bytes_);
#endif
  swapcontext(&fibers_[thread]->context, &scheduler_);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

void cta::finish(std::uint32_t thread) {
  fibers_[thread]->finished = true;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(nullptr, scheduler_stack_, scheduler_stack_bytes_);
#endif
  setcontext(&scheduler_);
  std::terminate();  // setcontext only returns when it failed
}

void cta::meet(meeting& point, std::uint32_t count, std::uint32_t thread,
               const std::function<void()>& action) {
  if (++point.arrived == count) {
    action();
    point.arrived = 0;
    ++point.generation;
    return;
  }
  fiber& self = *fibers_[thread];
  self.waiting = &point;
  self.awaited = point.generation;
  while (blocked(self)) {
    yield(thread);
  }
  self.waiting = nullptr;
}

void cta::start(std::uint32_t thread) {
  fiber& f = *fibers_[thread];
  const auto address = reinterpret_cast<std::uint64_t>(&f);
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack.data();
  f.context.uc_stack.ss_size = f.stack.size();
  f.context.uc_link = nullptr;
  makecontext(&f.context, reinterpret_cast<void (*)()>(&cta::entry), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
}

std::vector<std::uint32_t> cta::runnable_warps() const {
  std::vector<std::uint32_t> warps;
  for (std::uint32_t t = 0; t < fibers_.size(); ++t) {
    if (!fibers_[t]->finished && !blocked(*fibers_[t]) &&
        (warps.empty() || warps.back() != t / 32)) {
      warps.push_back(t / 32);
    }
  }
  return warps;
}

void cta::run(const body& kernel) {
  kernel_ = &kernel;
  for (std::uint32_t t = 0; t < fibers_.size(); ++t) {
    start(t);
  }
  std::mt19937_64 order(shape_.seed);
  for (auto warps = runnable_warps(); !warps.empty(); warps = runnable_warps()) {
    const std::uint32_t warp = warps[order() % warps.size()];
    for (std::uint32_t t = warp * 32; t < warp * 32 + 32; ++t) {
      if (!fibers_[t]->finished && !blocked(*fibers_[t])) {
        resume(t);
      }
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }
  for (const auto& f : fibers_) {
    if (!f->finished) {
      throw std::logic_error("threads wait for a barrier that others have left");
    }
  }
}

void run_grid(std::uint32_t x, std::uint32_t y, cta_shape shape, const cta::body& kernel) {
  for (shape.block_y = 0; shape.block_y < y; ++shape.block_y) {
    for (shape.block = 0; shape.block < x; ++shape.block) {
      ++shape.seed;
      cta(shape).run(kernel);
    }
  }
}

}  // namespace kvtier::gpu::emulation
