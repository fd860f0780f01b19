/// The disk tier: one block file per configured directory, one io backend for all.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/config.hpp"
#include "runtime/extent.hpp"
#include "runtime/geometry.hpp"
#include "storage/block_file.hpp"
#include "storage/io_backend.hpp"

namespace kvtier {

/// Thread-safe.
class disk_store {
 public:
  /// Opens the backend and preallocates the files. Throws what they throw.
  disk_store(const config& options, const geometry& sizes);
  /// Over given parts (tests). The backend is destroyed after the files.
  disk_store(std::unique_ptr<storage::io_backend> backend,
             std::vector<std::unique_ptr<storage::block_file>> files);
  ~disk_store();

  std::uint32_t slot_count() const noexcept;
  std::uint64_t slot_bytes() const noexcept;
  bool direct() const noexcept;
  std::string_view backend_name() const noexcept { return backend_->name(); }
  storage::io_backend& backend() noexcept { return *backend_; }
  storage::block_file_counters counters() const;

  /// All blocks or none, spread over the files in turn.
  bool claim(std::uint32_t blocks, std::vector<disk_place>* places);
  void release(const std::vector<disk_place>& places);

  status store(const disk_place& place, std::span<const std::byte> payload,
               storage::io_priority priority, storage::block_file::store_callback done);
  status load(const disk_place& place, std::span<std::byte> payload, storage::io_priority priority,
              storage::block_file::load_callback done);

 private:
  std::unique_ptr<storage::io_backend> backend_;  // outlives the files
  std::vector<std::unique_ptr<storage::block_file>> files_;
  std::mutex mutex_;
  std::size_t next_file_ = 0;
};

}  // namespace kvtier
