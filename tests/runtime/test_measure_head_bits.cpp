#include "runtime/measure_head_bits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "tests/support/complaint.hpp"

namespace kvtier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t tokens = 700;

kv_shape shape_of(std::uint32_t kv_heads = 3) {
  return {.layers = 1, .query_heads = 2 * kv_heads, .kv_heads = kv_heads, .head_dim = 64};
}

/// Normal keys, and queries that scatter the logits of head h by spreads[h] (two query heads per KV
/// head).
struct made_layer {
  explicit made_layer(const std::vector<float>& spreads) {
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    const std::size_t kv_heads = spreads.size() / 2;
    for (std::size_t i = 0; i < tokens * kv_heads * 64; ++i) {
      k.push_back(normal(random) + 3.0f);
    }
    for (const std::uint64_t position : positions) {
      (void)position;
      for (const float spread : spreads) {
        for (int d = 0; d < 64; ++d) {
          q.push_back(spread * normal(random));
        }
      }
    }
  }

  layer_sample sample() const {
    return {.q = q.data(), .query_positions = positions, .k = k.data(), .tokens = tokens};
  }

  std::vector<std::uint64_t> positions{300, 500, 600, 699};
  std::vector<float> q, k;
};

TEST(measure_head_bits, gives_flat_heads_one_bit) {
  const made_layer layer({.3f, .2f, .2f, 1.5f, 2, 3});
  EXPECT_THAT(measure_head_bits(shape_of(), layer.sample()), ElementsAre(1, 2, 2))
      << "one sharp query head is enough";
}

TEST(measure_head_bits, takes_every_element_type) {
  const made_layer layer({.3f, .2f, 2, 3});
  for (const element_type element : {element_type::bf16, element_type::fp16}) {
    std::vector<std::byte> q(layer.q.size() * 2), k(layer.k.size() * 2);
    from_float(element, layer.q.data(), q.data(), layer.q.size());
    from_float(element, layer.k.data(), k.data(), layer.k.size());
    layer_sample sample = layer.sample();
    sample.q = q.data();
    sample.k = k.data();
    sample.element = element;
    EXPECT_THAT(measure_head_bits(shape_of(2), sample), ElementsAre(1, 2));
  }
}

TEST(measure_head_bits, leaves_out_the_sinks_and_what_a_query_does_not_see) {
  made_layer layer({.3f, .3f});
  for (std::size_t i = 0; i < std::size_t{64} * 64; ++i) {
    layer.k[i] *= 100;  // the first tile
  }
  EXPECT_THAT(measure_head_bits(shape_of(1), layer.sample()), ElementsAre(1));
  for (std::size_t i = std::size_t{128} * 64; i < layer.k.size(); ++i) {
    layer.k[i] *= 100;
  }
  EXPECT_THAT(measure_head_bits(shape_of(1), layer.sample()), ElementsAre(2));
  layer.positions = {128, 150, 180, 191};
  EXPECT_THAT(measure_head_bits(shape_of(1), layer.sample()), ElementsAre(1));
}

TEST(measure_head_bits, gives_two_where_nothing_is_known) {
  made_layer layer({.1f, .1f});
  layer_sample sample = layer.sample();
  sample.tokens = 127;
  EXPECT_THAT(measure_head_bits(shape_of(1), sample), ElementsAre(2)) << "no tile but the first";
  sample.tokens = 0;
  EXPECT_THAT(measure_head_bits(shape_of(1), sample), ElementsAre(2));
  sample = layer.sample();
  sample.query_positions = {};
  EXPECT_THAT(measure_head_bits(shape_of(1), sample), ElementsAre(2));
  layer.positions = {0, 5, 64, 127};
  EXPECT_THAT(measure_head_bits(shape_of(1), layer.sample()), ElementsAre(2));
  layer.positions = {300, 500, 600, 699};
  layer.k[64 * 100] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(measure_head_bits(shape_of(1), layer.sample()), ElementsAre(2));
}

TEST(measure_head_bits, refuses_what_it_cannot_read) {
  const made_layer layer({.1f, .1f});
  const auto refused = [&](const kv_shape& shape, const layer_sample& sample) {
    return test::complaint_of([&] { measure_head_bits(shape, sample); });
  };
  layer_sample sample = layer.sample();
  sample.k = nullptr;
  EXPECT_THAT(refused(shape_of(1), sample), HasSubstr("layer_sample.k is null"));
  sample = layer.sample();
  sample.q = nullptr;
  EXPECT_THAT(refused(shape_of(1), sample), HasSubstr("give 4 queries"));
  sample = layer.sample();
  sample.element = static_cast<element_type>(77);
  EXPECT_THAT(refused(shape_of(1), sample), HasSubstr("element is 77"));
  kv_shape shape = shape_of(1);
  shape.head_dim = 96;
  EXPECT_THAT(refused(shape, layer.sample()), HasSubstr("head_dim"));
}

}  // namespace
}  // namespace kvtier
