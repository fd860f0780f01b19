#include "tools/decoder/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "tools/decoder/json_document.hpp"

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace kvtier::decoder {
namespace {

constexpr std::uint64_t length_bytes = 8;
/// The format's own limit.
constexpr std::uint64_t largest_header = 100'000'000;

constexpr std::array<std::pair<std::string_view, std::uint64_t>, 15> dtype_bytes{{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"F8_E8M0", 1},
    {"U16", 2},
    {"I16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"U32", 4},
    {"I32", 4},
    {"F32", 4},
    {"F64", 8},
    {"I64", 8},
}};

std::uint64_t read_header_length(const std::filesystem::path& path,
                                 std::span<const std::byte> bytes) {
  if (bytes.size() < length_bytes) {
    throw model_error(path.string() + " has " + std::to_string(bytes.size()) +
                      " bytes, too few for a safetensors file; download it again");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > largest_header || length > bytes.size() - length_bytes) {
    throw model_error(path.string() + ": the header claims " + std::to_string(length) +
                      " bytes in a file of " + std::to_string(bytes.size()) +
                      "; the file is truncated or no safetensors file, download it again");
  }
  return length;
}

/// Bytes that type and shape ask for.
std::uint64_t expected_bytes(const json_value& entry, const std::vector<std::uint64_t>& shape) {
  const json_value dtype = entry.at("dtype");
  const auto* const known =
      std::find_if(dtype_bytes.begin(), dtype_bytes.end(),
                   [&](const auto& candidate) { return candidate.first == dtype.string(); });
  if (known == dtype_bytes.end()) {
    dtype.fail("this element type is not known; use bf16, fp16 or fp32 weights");
  }
  std::uint64_t bytes = known->second;
  for (const std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      entry.at("shape").fail("the array would exceed 2^64 bytes; the file is damaged");
    }
  }
  return bytes;
}

tensor_view read_entry(const json_value& entry, std::span<const std::byte> data) {
  constexpr std::uint64_t any = ~std::uint64_t{0};
  tensor_view tensor;
  tensor.dtype = entry.at("dtype").string();
  for (const json_value& extent : entry.at("shape").elements()) {
    tensor.shape.push_back(extent.unsigned_integer(0, any));
  }
  const json_value offsets = entry.at("data_offsets");
  const auto range = offsets.elements();
  if (range.size() != 2) {
    offsets.fail("a begin and an end are expected");
  }
  const std::uint64_t begin = range[0].unsigned_integer(0, any);
  const std::uint64_t end = range[1].unsigned_integer(0, any);
  if (begin > end || end > data.size()) {
    offsets.fail("outside the " + std::to_string(data.size()) +
                 " bytes of data; the file is truncated or damaged, download it again");
  }
  const std::uint64_t expected = expected_bytes(entry, tensor.shape);
  if (end - begin != expected) {
    offsets.fail("type and shape need " + std::to_string(expected) +
                 " bytes; the file is damaged, download it again");
  }
  tensor.data = data.subspan(begin, end - begin);
  return tensor;
}

/// Every byte of the data belongs to exactly one tensor.
void require_tiling(const std::filesystem::path& path, std::span<const std::byte> data,
                    const std::map<std::string, tensor_view, std::less<>>& tensors) {
  std::vector<std::pair<std::uint64_t, const std::pair<const std::string, tensor_view>*>> order;
  order.reserve(tensors.size());
  for (const auto& named : tensors) {
    order.emplace_back(static_cast<std::uint64_t>(named.second.data.data() - data.data()), &named);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second->second.data.size()) <
           std::pair(b.first, b.second->second.data.size());
  });
  std::uint64_t covered = 0;
  for (const auto& [begin, named] : order) {
    if (begin != covered) {
      throw model_error(path.string() + ": tensor " + named->first + " begins at " +
                        std::to_string(begin) + " where " + std::to_string(covered) +
                        " is expected: tensors overlap or leave a hole; download the file again");
    }
    covered += named->second.data.size();
  }
  if (covered != data.size()) {
    throw model_error(path.string() + ": " + std::to_string(data.size() - covered) +
                      " bytes at the end belong to no tensor; download the file again");
  }
}

}  // namespace

std::string to_string(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (const std::uint64_t extent : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  return text + "]";
}

safetensors_file::safetensors_file(const std::filesystem::path& file)
    : path_(file), mapping_(file) {
  const auto bytes = mapping_.bytes();
  const std::uint64_t length = read_header_length(path_, bytes);
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + length_bytes, length);
  const auto data = bytes.subspan(length_bytes + length);
  // Level 2: the keys of each tensor's entry must be unique as well as the names.
  const json_document document = json_document::parse(header, path_.string() + " (header)", 2);
  for (const auto& [name, raw] : document.root().raw().items()) {
    if (name != "__metadata__") {
      tensors_.emplace(name, read_entry(document.root().at(name), data));
    }
  }
  require_tiling(path_, data, tensors_);
}

}  // namespace kvtier::decoder
