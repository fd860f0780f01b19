#include "cpu/element.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace kvtier {
namespace {

TEST(element, every_fp16_survives_the_way_there_and_back) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = float_from_fp16(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(float_from_fp16(fp16_from_float(wide))));
    } else {
      ASSERT_EQ(fp16_from_float(wide), half) << bits;
    }
  }
}

TEST(element, every_bf16_survives_the_way_there_and_back) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = float_from_bf16(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(wide))));
    } else {
      ASSERT_EQ(bf16_from_float(wide), half) << bits;
    }
  }
}

TEST(element, fp16_values_by_definition) {
  EXPECT_EQ(float_from_fp16(0x3c00), 1.0f);
  EXPECT_EQ(float_from_fp16(0xc000), -2.0f);
  EXPECT_EQ(float_from_fp16(0x7bff), 65504.0f);
  EXPECT_EQ(float_from_fp16(0x0001), 0x1p-24f);
  EXPECT_EQ(float_from_fp16(0x03ff), 1023 * 0x1p-24f);
  EXPECT_EQ(float_from_fp16(0x0400), 0x1p-14f);
  EXPECT_EQ(float_from_fp16(0x7c00), std::numeric_limits<float>::infinity());
}

TEST(element, fp16_rounds_to_nearest_even) {
  // Between neighbours: below the middle down, above it up, in the middle to the even one.
  for (std::uint32_t bits = 0; bits + 1 < 0x7c00u; ++bits) {
    const float low = float_from_fp16(static_cast<std::uint16_t>(bits));
    const float high = float_from_fp16(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(fp16_from_float(std::nextafter(middle, low)), bits);
    ASSERT_EQ(fp16_from_float(std::nextafter(middle, high)), bits + 1);
    ASSERT_EQ(fp16_from_float(middle), bits + bits % 2);
    ASSERT_EQ(fp16_from_float(-middle), 0x8000u | (bits + bits % 2));
  }
  EXPECT_EQ(fp16_from_float(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(fp16_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(fp16_from_float(-1e9f), 0xfc00);
  EXPECT_EQ(fp16_from_float(0x1p-25f), 0);
  EXPECT_EQ(fp16_from_float(std::nextafter(0x1p-25f, 1.0f)), 1);
}

TEST(element, bf16_rounds_to_nearest_even) {
  EXPECT_EQ(bf16_from_float(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(bf16_from_float(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
  EXPECT_EQ(bf16_from_float(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16_from_float(-std::numeric_limits<float>::infinity()), 0xff80);
}

TEST(element, arrays_convert_at_any_alignment) {
  const std::vector<float> values = {0.0f, -1.5f, 3.25f, 1024.0f, -0.0078125f};
  for (const element_type type : {element_type::bf16, element_type::fp16, element_type::fp32}) {
    for (const std::size_t lead : {0u, 1u, 2u, 3u}) {
      std::vector<std::byte> bytes(lead + values.size() * element_bytes(type));
      from_float(type, values.data(), bytes.data() + lead, values.size());
      std::vector<float> back(values.size());
      to_float(type, bytes.data() + lead, back.data(), values.size());
      EXPECT_EQ(back, values) << to_string(type) << ", lead " << lead;
    }
  }
}

TEST(element, converting_nothing_touches_nothing) {
  for (const element_type type : {element_type::bf16, element_type::fp16, element_type::fp32}) {
    to_float(type, nullptr, nullptr, 0);
    from_float(type, nullptr, nullptr, 0);
  }
}

}  // namespace
}  // namespace kvtier
