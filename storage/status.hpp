/// Outcomes of data-path operations.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvtier {

enum class [[nodiscard]] status : std::uint8_t{
    ok,
    not_found,  ///< no such key, slot or block
    rejected,   ///< can never succeed as asked (too large, wrong state); retrying does not help
    retry,      ///< no room or queue full right now; ask again after progress
    io_error,   ///< the kernel or the drive refused or failed
    checksum_error,  ///< bytes came back that are not those last committed
    lost,            ///< live data cannot be had again; the caller must recompute
    cancelled,       ///< cancelled before it started
    timed_out,       ///< a deadline passed
};

constexpr std::string_view to_string(status value) noexcept {
  switch (value) {
    case status::ok:
      return "ok";
    case status::not_found:
      return "not found";
    case status::rejected:
      return "rejected";
    case status::retry:
      return "retry";
    case status::io_error:
      return "io error";
    case status::checksum_error:
      return "checksum error";
    case status::lost:
      return "lost";
    case status::cancelled:
      return "cancelled";
    case status::timed_out:
      return "timed out";
  }
  return "?";
}

}  // namespace kvtier
