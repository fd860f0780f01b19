/// An unnamed, preallocated file for live spill.
#pragma once

#include <cstdint>
#include <filesystem>

#include "storage/unique_fd.hpp"

namespace kvtier::storage {

struct spill_file {
  unique_fd fd;
  bool direct = false;  ///< O_DIRECT is set, and the file system honours it
};

/// Creates a file of `bytes` in `directory` that no name leads to, mode 0600, all space reserved.
/// Throws std::system_error with the path, the bytes asked for and what is free; on failure no
/// space stays taken.
spill_file create_spill_file(const std::filesystem::path& directory, std::uint64_t bytes);

}  // namespace kvtier::storage
