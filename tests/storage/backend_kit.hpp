/// What the behaviour suites need of every io backend, so that a test is written once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "storage/faulty_backend.hpp"
#include "storage/io_backend.hpp"
#include "storage/sim_backend.hpp"
#include "storage/unique_fd.hpp"

namespace kvtier::storage::test {

/// "uring", "threads", "sim" or "faulty" (over threads, no faults).
inline const std::vector<std::string> all_backends{"uring", "threads", "sim", "faulty"};

/// A backend of a kind, files for it, and its progress. Files are unnamed and go with the kit.
class backend_kit {
 public:
  explicit backend_kit(const std::string& kind, const io_options& options = {});
  ~backend_kit();
  backend_kit(const backend_kit&) = delete;
  backend_kit& operator=(const backend_kit&) = delete;

  /// Why there is no such backend here; empty if there is.
  const std::string& unavailable() const noexcept { return unavailable_; }
  io_backend& io() noexcept { return *backend_; }
  bool simulated() const noexcept { return sim_ != nullptr; }
  sim_backend& sim() noexcept { return *sim_; }
  void destroy_backend();

  int make_file(std::uint64_t size);
  /// Reads or changes a file's bytes behind the backend's back, O_DIRECT or not.
  std::vector<std::byte> read_file(int fd, std::uint64_t offset, std::size_t length);
  void change_file(int fd, std::uint64_t offset, std::span<const std::byte> bytes);
  void truncate_file(int fd, std::uint64_t size);

  /// Keeps a backend of queue_depth 1 and threads 1 from starting anything until released.
  void hold();
  void release();
  /// Returns once stop(), called by another thread, refuses requests.
  void wait_until_stopping();

  /// Lets the backend work until `reached()`; fails the test when it does not get there.
  void run_until(const std::function<bool()>& reached);

 private:
  std::string unavailable_;
  std::unique_ptr<io_backend> backend_;
  sim_backend* sim_ = nullptr;
  std::vector<unique_fd> files_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool holding_ = false;
  bool gate_reached_ = false;
  bool gate_left_ = true;
  std::byte gate_byte_{0};
};

/// Collects the ends of requests in the order in which they come. Thread-safe.
class result_collector {
 public:
  /// A callback that records under `id`.
  io_callback record(std::size_t id);
  std::size_t count() const;
  std::vector<std::size_t> order() const;
  /// The results recorded under `id`: one, if all is well.
  std::vector<io_result> of(std::size_t id) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<std::size_t, io_result>> results_;
};

/// `length` bytes that depend on the seed and the position.
std::vector<std::byte> pattern(std::size_t length, std::uint64_t seed);

}  // namespace kvtier::storage::test
