/// What the return value of one read or write means for the request it belongs to.
#pragma once

#include <cerrno>
#include <cstdint>
#include <optional>

#include "storage/io_queue.hpp"

namespace kvtier::storage {

/// Takes in the kernel's answer to one transfer of `io`: bytes moved, or a negative errno. Returns
/// the end of the request, or nullopt when the rest has to be asked for again.
inline std::optional<io_result> take_answer(queued_io& io, std::int64_t answer) noexcept {
  if (answer == -EINTR || answer == -EAGAIN) {
    return std::nullopt;
  }
  if (answer < 0) {
    return io_result{status::io_error, static_cast<int>(-answer), io.transferred};
  }
  if (answer == 0) {
    const int reason = io.request.kind == io_kind::read ? ENODATA : EIO;
    return io_result{status::io_error, reason, io.transferred};
  }
  io.transferred += static_cast<std::size_t>(answer);
  if (io.transferred < io.request.length) {
    return std::nullopt;
  }
  return io_result{status::ok, 0, io.transferred};
}

}  // namespace kvtier::storage
