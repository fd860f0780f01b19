/// A block file on a file that is there already: for simulated backends, tests and tools.
#pragma once

#include <cstdint>
#include <memory>

#include "storage/block_file.hpp"

namespace kvtier::storage {

struct opened_file {
  int fd = -1;          ///< of the kernel, or a sim_backend's
  bool owned = false;   ///< close(fd) when the block file and its last operation have gone
  bool direct = false;  ///< what block_file::direct() shall say
};

/// As block_file::create, but on `file`, whose first `options.capacity_bytes` bytes it uses;
/// `options.directory` is ignored. Throws std::invalid_argument for unusable options.
std::unique_ptr<block_file> create_block_file_on(const opened_file& file,
                                                 const block_file_options& options,
                                                 io_backend& backend);

}  // namespace kvtier::storage
