/// The weights of a model folder by name, whatever the number of files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/element.hpp"
#include "tools/decoder/safetensors.hpp"

namespace kvtier::decoder {

/// A floating-point array whose shape was checked.
struct weight_view {
  element_type element = element_type::fp32;
  const std::byte* data = nullptr;  ///< row-major; lives as long as the source, no alignment
  std::uint64_t count = 0;
};

/// The files that a model of `folder` is read from, there or not: configuration, tokenizer, weights
/// and the shards that an index names. Throws model_error where the index cannot be read.
std::vector<std::filesystem::path> model_files(const std::filesystem::path& folder);

class tensor_source {
 public:
  /// Opens model.safetensors of `folder`, or all shards that model.safetensors.index.json names.
  /// Throws model_error.
  explicit tensor_source(const std::filesystem::path& folder);

  /// Throws model_error naming the tensor if it is missing, has another shape or is not bf16, fp16
  /// or fp32. The name counts as used from then on.
  weight_view weight(const std::string& name, std::initializer_list<std::uint64_t> shape);

  /// The first tensor (by name) with `prefix` that nobody asked for; empty if there is none.
  std::string unused(std::string_view prefix) const;
  /// The folder's weight file, for messages.
  const std::string& description() const noexcept { return description_; }

 private:
  void open_shards(const std::filesystem::path& index);
  const tensor_view* find(const std::string& name) const;

  std::string description_;
  std::vector<safetensors_file> files_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace kvtier::decoder
