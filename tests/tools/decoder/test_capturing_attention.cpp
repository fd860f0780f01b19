#include "tools/decoder/capturing_attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include "tests/tools/decoder/test_folders.hpp"

namespace kvtier::decoder {
namespace {

std::vector<std::int32_t> bytes(std::size_t count) {
  std::vector<std::int32_t> made;
  for (std::size_t i = 0; i < count; ++i) {
    made.push_back(static_cast<std::int32_t>(i * i % 251 + i % 5));
  }
  return made;
}

// What a capture holds is checked against the models in tests/tools/eval/test_model_heads.cpp.

TEST(capturing_attention, keeps_all_keys_and_the_queries_asked_for) {
  const auto model = model::load(test::needle_folder(), {.threads = 1});
  const model_config& config = model->config();
  constexpr std::size_t tokens = 600;
  capturing_attention all(
      config, tokens,
      {.query_positions = {0, 511, 512, 599}, .last_layer = 3, .element = element_type::fp32});
  all.run(*model, bytes(tokens));
  const std::size_t row = std::size_t{2} * config.head_dim * sizeof(float);
  const std::size_t queries = std::size_t{4} * config.query_heads * config.head_dim;
  for (std::uint32_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(all.queries(layer).size(), queries);
    for (std::uint32_t head = 0; head < config.kv_heads; ++head) {
      EXPECT_EQ(all.rows(layer, head).size(), tokens * row);
    }
  }
  capturing_attention some(
      config, tokens, {.query_positions = {512}, .last_layer = 1, .element = element_type::fp32});
  some.run(*model, bytes(tokens));
  EXPECT_TRUE(std::ranges::equal(some.rows(1, 0), all.rows(1, 0)));
  const std::size_t one = queries / 4;
  EXPECT_TRUE(std::ranges::equal(some.queries(1), all.queries(1).subspan(2 * one, one)));
  EXPECT_EQ(some.take_rows(1, 0).size(), tokens * row);
  EXPECT_TRUE(some.rows(1, 0).empty()) << "given up";
}

TEST(full_layers, are_those_without_a_window) {
  model_config config;
  config.layers = 4;
  config.attention.resize(4);
  config.attention[1].window = 64;
  EXPECT_EQ(full_layers(config), (std::vector<std::uint32_t>{0, 2, 3}));
}

TEST(last_positions, are_spread_evenly) {
  EXPECT_EQ(last_positions(5000, 4), (std::vector<std::uint64_t>{4231, 4487, 4743, 4999}));
  EXPECT_EQ(last_positions(3, 8), (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(last_positions(10, 1), (std::vector<std::uint64_t>{9}));
  EXPECT_THROW(last_positions(10, 0), std::invalid_argument);
  EXPECT_THROW(last_positions(0, 1), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::decoder
