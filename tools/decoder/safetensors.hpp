/// The safetensors format: named arrays behind a JSON header, read by mmap and never trusted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/element.hpp"
#include "tools/decoder/mapped_file.hpp"

namespace kvtier::decoder {

/// One array of an open file; `data` lives as long as the file's mapping and has no alignment.
struct tensor_view {
  std::string dtype;  ///< as the file spells it: "BF16", "F16", "F32", ...
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;  ///< row-major, little-endian
};

/// "[2, 64]".
std::string to_string(const std::vector<std::uint64_t>& shape);

/// An open file whose header was checked in full: every array lies inside the file, has the bytes
/// that its type and shape ask for, and the arrays cover the data without overlap or hole.
class safetensors_file {
 public:
  /// Throws model_error naming the file and the tensor at fault.
  explicit safetensors_file(const std::filesystem::path& file);

  const std::filesystem::path& path() const noexcept { return path_; }
  const std::map<std::string, tensor_view, std::less<>>& tensors() const noexcept {
    return tensors_;
  }

 private:
  std::filesystem::path path_;
  mapped_file mapping_;
  std::map<std::string, tensor_view, std::less<>> tensors_;
};

}  // namespace kvtier::decoder
