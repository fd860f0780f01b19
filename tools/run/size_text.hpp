/// Sizes and lists as flags spell them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvtier::run {

/// Bytes of "4096", "4k", "1.5M", "64GiB": k, m, g and t are powers of 1024, with or without "B" or
/// "iB", in either case. Throws usage_error that names `place`, the text and how to write it.
std::uint64_t parse_size(std::string_view text, std::string_view place);

/// A directory and the bytes to use in it.
struct disk_share {
  std::filesystem::path directory;
  std::uint64_t bytes = 0;
};

/// "DIR:SIZE", cut at the last colon. Throws usage_error.
disk_share parse_disk(std::string_view text, std::string_view place);

/// "0,3,5" (ascending or not), each in [0, limit), duplicates dropped; sorted. Empty text is an
/// empty list. Throws usage_error.
std::vector<std::uint32_t> parse_index_list(std::string_view text, std::uint32_t limit,
                                            std::string_view place);

/// "0 B", "1536 B", "12.0 KiB", "31.9 MiB": at most four digits and a unit.
std::string format_bytes(std::uint64_t bytes);

}  // namespace kvtier::run
