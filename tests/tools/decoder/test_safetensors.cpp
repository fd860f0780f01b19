/// Good files are read, damaged and hostile ones give an error that names the tensor.
#include "tools/decoder/safetensors.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/tools/decoder/expect_model_error.hpp"
#include "tests/tools/decoder/temporary_folder.hpp"

namespace kvtier::test {
namespace {

using decoder::safetensors_file;
using json = nlohmann::json;

std::string with_length(std::uint64_t length, std::string_view rest) {
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + std::string(rest);
}

std::string file_of(const std::string& header, std::size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, '\1'));
}

json entry(const char* dtype, const std::vector<std::uint64_t>& shape, std::uint64_t begin,
           std::uint64_t end) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

class safetensors : public testing::Test {
 protected:
  temporary_folder folder_;

  std::filesystem::path write(const std::string& bytes) const {
    folder_.write("x.safetensors", bytes);
    return folder_.path() / "x.safetensors";
  }
  void expect_refused(const std::string& bytes, std::initializer_list<const char*> parts) const {
    const auto path = write(bytes);
    expect_model_error([&] { safetensors_file file(path); }, parts);
  }
  void expect_refused(const json& header, std::size_t data_bytes,
                      std::initializer_list<const char*> parts) const {
    expect_refused(file_of(header.dump(), data_bytes), parts);
  }
};

TEST_F(safetensors, reads_names_types_shapes_and_bytes) {
  const json header = {{"__metadata__", {{"format", "pt"}}},
                       {"b", entry("F32", {2, 1}, 6, 14)},
                       {"a", entry("BF16", {3}, 0, 6)},
                       {"scalar", entry("I64", {}, 14, 22)},
                       {"empty", entry("F16", {0, 5}, 14, 14)}};
  const safetensors_file file(write(file_of(header.dump(), 22)));
  ASSERT_EQ(file.tensors().size(), 4u);
  const auto& b = file.tensors().at("b");
  EXPECT_EQ(b.dtype, "F32");
  EXPECT_EQ(b.shape, (std::vector<std::uint64_t>{2, 1}));
  EXPECT_EQ(b.data.size(), 8u);
  EXPECT_EQ(b.data.data() - file.tensors().at("a").data.data(), 6);
  EXPECT_TRUE(file.tensors().at("empty").data.empty());
  EXPECT_EQ(decoder::to_string(b.shape), "[2, 1]");
}

TEST_F(safetensors, files_too_short_for_their_header) {
  expect_refused("", {"x.safetensors", "0 bytes"});
  expect_refused("1234567", {"7 bytes"});
  expect_refused(with_length(100, "{}"), {"header claims 100 bytes", "truncated"});
  expect_refused(with_length(~std::uint64_t{0}, "{}"), {"header claims", "truncated"});
  expect_refused(with_length(std::uint64_t{1} << 63, "{}"), {"header claims"});
}

TEST_F(safetensors, headers_nested_too_deep_to_show) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  expect_refused(file_of(deep, 0), {"header", "an array of more than 20 levels", "object"});
  expect_refused(file_of(R"({"a":{"dtype":)" + deep + "}}", 0), {"a.dtype", "more than 20 levels"});
}

TEST_F(safetensors, headers_that_are_no_object) {
  expect_refused(file_of("", 0), {"header", "not JSON"});
  expect_refused(file_of("[]", 0), {"object"});
  expect_refused(file_of(R"({"a": )", 0), {"not JSON"});
  expect_refused(file_of("\xff\xff", 0), {"not JSON"});
  expect_refused(file_of(std::string(100000, '['), 0), {"not JSON"});
}

TEST_F(safetensors, entries_that_lack_or_misspell_something) {
  expect_refused(json{{"a", 5}}, 0, {"a", "object"});
  expect_refused(json{{"a", {{"shape", {1}}, {"data_offsets", {0, 4}}}}}, 4,
                 {"a.dtype", "missing"});
  expect_refused(json{{"a", {{"dtype", "F32"}, {"data_offsets", {0, 4}}}}}, 4,
                 {"a.shape", "missing"});
  expect_refused(json{{"a", {{"dtype", "F32"}, {"shape", {1}}}}}, 4, {"a.data_offsets", "missing"});
  expect_refused(json{{"a", entry("Q4", {1}, 0, 4)}}, 4, {"a.dtype", "Q4"});
  json negative = {{"a", entry("F32", {1}, 0, 4)}};
  negative["a"]["shape"] = {-1};
  expect_refused(negative, 4, {"a.shape[0]", "-1"});
  negative["a"]["shape"] = {1};
  negative["a"]["data_offsets"] = {-4, 0};
  expect_refused(negative, 4, {"a.data_offsets[0]"});
  negative["a"]["data_offsets"] = {0, 4, 8};
  expect_refused(negative, 4, {"a.data_offsets"});
  negative["a"]["data_offsets"] = {0, 4.5};
  expect_refused(negative, 4, {"a.data_offsets[1]"});
}

TEST_F(safetensors, offsets_outside_the_data) {
  expect_refused(json{{"a", entry("F32", {2}, 0, 8)}}, 7,
                 {"a.data_offsets", "outside the 7 bytes"});
  expect_refused(json{{"a", entry("F32", {1}, 8, 4)}}, 8, {"a.data_offsets"});
  expect_refused(json{{"a", entry("F32", {1}, ~std::uint64_t{0} - 3, ~std::uint64_t{0})}}, 4,
                 {"a.data_offsets", "outside"});
}

TEST_F(safetensors, sizes_that_do_not_fit_type_and_shape) {
  expect_refused(json{{"a", entry("F32", {3}, 0, 8)}}, 8, {"a.data_offsets", "need 12 bytes"});
  expect_refused(json{{"a", entry("F32", {std::uint64_t{1} << 62}, 0, 0)}}, 0, {"a.shape", "2^64"});
  expect_refused(json{{"a", entry("U8", {std::uint64_t{1} << 32, std::uint64_t{1} << 32}, 0, 0)}},
                 0, {"a.shape", "2^64"});
}

TEST_F(safetensors, overlaps_and_holes) {
  expect_refused(json{{"a", entry("U8", {4}, 0, 4)}, {"b", entry("U8", {4}, 2, 6)}}, 6,
                 {"tensor b", "overlap"});
  expect_refused(json{{"a", entry("U8", {4}, 0, 4)}, {"b", entry("U8", {4}, 0, 4)}}, 4,
                 {"tensor", "overlap"});
  expect_refused(json{{"a", entry("U8", {2}, 0, 2)}, {"b", entry("U8", {2}, 4, 6)}}, 6,
                 {"tensor b", "hole"});
  expect_refused(json{{"a", entry("U8", {2}, 0, 2)}}, 5, {"3 bytes at the end"});
}

TEST_F(safetensors, names_that_appear_twice) {
  const std::string one = entry("U8", {2}, 0, 2).dump();
  expect_refused(file_of(R"({"a": )" + one + R"(, "a": )" + one + "}", 2), {"\"a\"", "twice"});
  expect_refused(
      file_of(R"({"a": {"dtype": "U8", "shape": [2], "shape": [2], "data_offsets": [0, 2]}})", 2),
      {"\"shape\"", "twice"});
}

TEST_F(safetensors, every_truncation_is_noticed) {
  const json header = {{"a", entry("F32", {2, 2}, 0, 16)}, {"b", entry("F16", {3}, 16, 22)}};
  const std::string whole = file_of(header.dump(), 22);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto path = write(whole.substr(0, size));
    EXPECT_THROW(safetensors_file{path}, decoder::model_error) << size << " bytes";
  }
}

TEST_F(safetensors, random_damage_never_reads_outside) {
  const json header = {{"a", entry("F32", {2, 2}, 0, 16)}, {"b", entry("F16", {3}, 16, 22)}};
  const std::string whole = file_of(header.dump(), 22);
  std::mt19937_64 random(11);
  for (int round = 0; round < 1000; ++round) {
    std::string damaged = whole;
    for (std::uint64_t hits = 1 + random() % 3; hits > 0; --hits) {
      damaged[random() % (whole.size() - 22)] = static_cast<char>(random());
    }
    const auto path = write(damaged);
    try {
      const safetensors_file file(path);
      unsigned sum = 0;
      for (const auto& [name, tensor] : file.tensors()) {
        for (const std::byte byte : tensor.data) {
          sum += std::to_integer<unsigned>(byte);
        }
      }
      EXPECT_EQ(sum, 22u);  // what was accepted still covers the data exactly
    } catch (const decoder::model_error&) {
    }
  }
}

TEST_F(safetensors, things_that_are_no_file) {
  expect_model_error([&] { safetensors_file file(folder_.path() / "none"); },
                     {"none", "cannot be opened"});
  expect_model_error([&] { safetensors_file file(folder_.path()); }, {"not a regular file"});
}

}  // namespace
}  // namespace kvtier::test
