/// A file mapped for reading.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "tools/decoder/model_error.hpp"

namespace kvtier::decoder {

/// Move-only owner of a read-only private mapping of a whole regular file.
class mapped_file {
 public:
  /// Throws model_error naming the file.
  explicit mapped_file(const std::filesystem::path& file);
  mapped_file(mapped_file&& other) noexcept;
  mapped_file& operator=(mapped_file&&) = delete;
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;
  ~mapped_file();

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kvtier::decoder
