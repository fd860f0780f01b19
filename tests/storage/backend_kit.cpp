#include "tests/storage/backend_kit.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "storage/aligned_buffer.hpp"
#include "storage/seeded.hpp"

namespace kvtier::storage::test {
namespace {

/// The 4096-aligned range around [offset, offset + length).
struct aligned_window {
  std::uint64_t begin;
  std::size_t length;
  std::size_t inner;

  aligned_window(std::uint64_t offset, std::size_t bytes)
      : begin(offset / io_alignment * io_alignment),
        length(round_up_to_alignment(offset + bytes) - begin),
        inner(offset - begin) {}
};

}  // namespace

backend_kit::backend_kit(const std::string& kind, const io_options& options) {
  if (kind == "uring") {
    backend_ = make_uring_backend(options, &unavailable_);
  } else if (kind == "threads") {
    backend_ = make_threads_backend(options);
  } else if (kind == "faulty") {
    backend_ = std::make_unique<faulty_backend>(make_threads_backend(options), faulty_options{});
  } else if (kind == "sim") {
    sim_options simulated;
    simulated.io = options;
    auto sim = std::make_unique<sim_backend>(simulated);
    sim_ = sim.get();
    backend_ = std::move(sim);
  } else {
    ADD_FAILURE() << "no backend kind " << kind;
  }
}

backend_kit::~backend_kit() {
  release();
  destroy_backend();
}

void backend_kit::destroy_backend() {
  backend_.reset();
  sim_ = nullptr;
}

int backend_kit::make_file(std::uint64_t size) {
  if (simulated()) {
    return sim_->make_file(size);
  }
  std::string name = testing::TempDir() + "kvtier-test-XXXXXX";
  unique_fd fd(::mkostemp(name.data(), O_CLOEXEC));
  EXPECT_TRUE(fd) << name << ": " << std::strerror(errno);
  ::unlink(name.c_str());
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size)), 0);
  files_.push_back(std::move(fd));
  return files_.back().get();
}

std::vector<std::byte> backend_kit::read_file(int fd, std::uint64_t offset, std::size_t length) {
  if (simulated()) {
    const std::span<std::byte> part = sim_->file(fd).subspan(offset, length);
    return {part.begin(), part.end()};
  }
  const aligned_window window(offset, length);
  const aligned_buffer buffer(window.length);
  const ssize_t moved = ::pread(fd, buffer.data(), window.length, static_cast<off_t>(window.begin));
  EXPECT_GE(moved, static_cast<ssize_t>(window.inner + length));
  const auto first = buffer.span().begin() + static_cast<std::ptrdiff_t>(window.inner);
  return {first, first + static_cast<std::ptrdiff_t>(length)};
}

void backend_kit::change_file(int fd, std::uint64_t offset, std::span<const std::byte> bytes) {
  if (simulated()) {
    std::ranges::copy(bytes, sim_->file(fd).subspan(offset, bytes.size()).begin());
    return;
  }
  const aligned_window window(offset, bytes.size());
  const aligned_buffer buffer(window.length);
  const auto at = static_cast<off_t>(window.begin);
  const auto whole = static_cast<ssize_t>(window.length);
  if (window.length != bytes.size()) {
    ASSERT_EQ(::pread(fd, buffer.data(), window.length, at), whole);
  }
  std::ranges::copy(bytes, buffer.span().subspan(window.inner).begin());
  ASSERT_EQ(::pwrite(fd, buffer.data(), window.length, at), whole);
}

void backend_kit::truncate_file(int fd, std::uint64_t size) {
  if (simulated()) {
    sim_->resize_file(fd, size);
  } else {
    ASSERT_EQ(::ftruncate(fd, static_cast<off_t>(size)), 0);
  }
}

void backend_kit::hold() {
  if (simulated()) {
    return;  // it does nothing until stepped
  }
  {
    std::lock_guard lock(mutex_);
    holding_ = true;
    gate_reached_ = false;
    gate_left_ = false;
  }
  ASSERT_EQ(backend_->submit({.fd = make_file(1),
                              .buffer = &gate_byte_,
                              .length = 1,
                              .done =
                                  [this](const io_result&) {
                                    std::unique_lock lock(mutex_);
                                    gate_reached_ = true;
                                    changed_.notify_all();
                                    changed_.wait(lock, [this] { return !holding_; });
                                    gate_left_ = true;
                                    changed_.notify_all();
                                  }}),
            status::ok);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return gate_reached_; });
}

void backend_kit::release() {
  std::unique_lock lock(mutex_);
  holding_ = false;
  changed_.notify_all();
  changed_.wait(lock, [this] { return gate_left_; });
}

void backend_kit::wait_until_stopping() {
  if (simulated()) {
    return;  // its stop() delivers everything itself
  }
  // Outlives the probes, which end during stop() at the latest.
  static std::byte scratch{0};
  const int fd = make_file(1);
  run_until([&] {
    return backend_->submit({.fd = fd, .buffer = &scratch, .length = 1, .done = [](auto&&) {}}) ==
           status::rejected;
  });
}

void backend_kit::run_until(const std::function<bool()>& reached) {
  using clock = std::chrono::steady_clock;
  const auto patience = clock::now() + std::chrono::seconds(60);
  while (!reached()) {
    const bool progressed = !simulated() || sim_->step();
    if (!progressed || !simulated()) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    if (clock::now() > patience) {
      FAIL() << "the backend got nowhere for 60 seconds";
    }
  }
}

io_callback result_collector::record(std::size_t id) {
  return [this, id](const io_result& result) {
    std::lock_guard lock(mutex_);
    results_.emplace_back(id, result);
  };
}

std::size_t result_collector::count() const {
  std::lock_guard lock(mutex_);
  return results_.size();
}

std::vector<std::size_t> result_collector::order() const {
  std::lock_guard lock(mutex_);
  std::vector<std::size_t> ids;
  for (const auto& [id, result] : results_) {
    ids.push_back(id);
  }
  return ids;
}

std::vector<io_result> result_collector::of(std::size_t id) const {
  std::lock_guard lock(mutex_);
  std::vector<io_result> found;
  for (const auto& [recorded, result] : results_) {
    if (recorded == id) {
      found.push_back(result);
    }
  }
  return found;
}

std::vector<std::byte> pattern(std::size_t length, std::uint64_t seed) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) {
    bytes[i] = static_cast<std::byte>(seeded_bits(seed, i / 8) >> (i % 8 * 8));
  }
  return bytes;
}

}  // namespace kvtier::storage::test
