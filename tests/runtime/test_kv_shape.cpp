#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/kv_shape.hpp"

namespace kvtier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

kv_shape small_shape() {
  return {.layers = 4,
          .query_heads = 8,
          .kv_heads = 2,
          .head_dim = 64,
          .element = element_type::bf16,
          .kinds = {{0}, {16}, {0}, {100}}};
}

TEST(kv_shape, bytes_of_a_sequence_count_a_sliding_layer_up_to_its_window) {
  const kv_shape shape = small_shape();
  // K and V x 2 heads x 64 x 2 bytes.
  EXPECT_EQ(shape.token_bytes(), 512u);
  EXPECT_EQ(shape.sequence_bytes(0), 0u);
  EXPECT_EQ(shape.sequence_bytes(10), 4u * 10 * 512);
  EXPECT_EQ(shape.sequence_bytes(50), (3u * 50 + 16) * 512);
  EXPECT_EQ(shape.sequence_bytes(1000), (2u * 1000 + 16 + 100) * 512);
}

TEST(kv_shape, without_kinds_every_layer_is_full) {
  kv_shape shape = small_shape();
  shape.kinds.clear();
  shape.element = element_type::fp32;
  EXPECT_EQ(shape.sequence_bytes(1000), 4u * 1000 * 1024);
}

TEST(kv_shape, bytes_saturate_instead_of_wrapping_round) {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(small_shape().sequence_bytes(most), most);
  EXPECT_EQ(small_shape().sequence_bytes(most / 512), most);
}

TEST(kv_shape, supported_shapes_pass) {
  EXPECT_NO_THROW(small_shape().validate());
  for (const std::uint32_t dim : {64u, 128u, 256u}) {
    for (std::uint32_t group = 1; group <= 8; ++group) {
      for (const auto element : {element_type::bf16, element_type::fp16, element_type::fp32}) {
        kv_shape shape = small_shape();
        shape.head_dim = dim;
        shape.query_heads = shape.kv_heads * group;
        shape.element = element;
        EXPECT_NO_THROW(shape.validate());
      }
    }
  }
}

struct bad_field {
  const char* field;
  const char* value;
  const char* supported;
  std::function<void(kv_shape&)> spoil;
};

TEST(kv_shape, refusal_names_field_value_and_what_is_supported) {
  const std::vector<bad_field> cases{
      {"layers", "is 0;", "1 to ", [](kv_shape& s) { s.layers = 0; }},
      {"layers", "is 4294967295;", "1 to ", [](kv_shape& s) { s.layers = ~0u; }},
      {"kv_heads", "is 0;", "1 to ", [](kv_shape& s) { s.kv_heads = 0; }},
      {"query_heads", "is 0;", "kv_heads (2)", [](kv_shape& s) { s.query_heads = 0; }},
      {"query_heads", "is 7;", "multiple", [](kv_shape& s) { s.query_heads = 7; }},
      {"query_heads", "is 18;", "1 to 8 times", [](kv_shape& s) { s.query_heads = 18; }},
      {"head_dim", "is 96;", "64, 128, 256", [](kv_shape& s) { s.head_dim = 96; }},
      {"element", "is 9;", "bf16, fp16, fp32",
       [](kv_shape& s) { s.element = static_cast<element_type>(9); }},
      {"kinds", "list of 3;", "per layer (4)", [](kv_shape& s) { s.kinds.pop_back(); }},
  };
  for (const auto& bad : cases) {
    kv_shape shape = small_shape();
    bad.spoil(shape);
    try {
      shape.validate();
      ADD_FAILURE() << "accepted a bad " << bad.field;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(std::string("kv_shape.") + bad.field),
                                      HasSubstr(bad.value), HasSubstr(bad.supported)));
    }
  }
}

}  // namespace
}  // namespace kvtier
