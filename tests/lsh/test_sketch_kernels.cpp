// Every level's kernels against the scalar ones: equal bytes, scores, counts and draws; equal
// weights to fp32 rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/isa.hpp"
#include "lsh/sketch_kernels.hpp"
#include "lsh/sketch_query.hpp"
#include "lsh/sketch_rotation.hpp"

namespace kvtier::lsh {
namespace {

enum class data_kind : std::uint8_t { normal, flat, sharp, extreme };

std::string to_string(data_kind kind) {
  return std::array{"normal", "flat", "sharp", "extreme"}[static_cast<std::size_t>(kind)];
}

constexpr std::size_t tiles = 35;  // more than one batch of anything, and odd

/// Rows of tile `tile`: ordinary ones, or what numbers can do at worst.
std::vector<float> make_rows(data_kind kind, std::uint32_t dims, std::size_t tile,
                             std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> rows(std::size_t{tile_tokens} * dims);
  for (float& x : rows) {
    x = normal(random);
  }
  if (kind != data_kind::extreme) {
    return rows;
  }
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  switch (tile % 9) {
    case 0:
      std::fill(rows.begin(), rows.end(), 0.0f);
      break;
    case 1:  // overflows every sum
      std::fill(rows.begin(), rows.end(), std::numeric_limits<float>::max());
      break;
    case 2:  // denormal
      std::for_each(rows.begin(), rows.end(), [](float& x) { x *= 1e-40f; });
      break;
    case 3:  // equal keys
      for (std::size_t i = dims; i < rows.size(); ++i) {
        rows[i] = rows[i % dims];
      }
      break;
    case 4:
      rows[17] = nan;
      rows[dims + 3] = infinity;
      rows[5 * dims] = -infinity;
      break;
    case 5:
      std::fill(rows.begin(), rows.end(), nan);
      break;
    case 6:  // one row dwarfs the others
      std::for_each(rows.begin(), rows.begin() + dims, [](float& x) { x *= 1e30f; });
      break;
    case 7:  // ties in every rounding
      std::for_each(rows.begin(), rows.end(), [](float& x) { x = std::round(2.0f * x); });
      break;
    default:
      break;
  }
  return rows;
}

/// Token indexes that one level's kernels made.
struct indexed_tiles {
  indexed_tiles(const sketch_kernels& which, const sketch_format& shape, data_kind data)
      : kernels(which), format(shape), kind(data), rotation(format.head_dim, 7) {
    std::mt19937 random(format.head_dim + format.bits);
    indexes = aligned_array<std::byte>(tiles * format.bytes());
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      const auto keys = make_rows(kind, format.head_dim, tile, random);
      const auto values = make_rows(kind, format.head_dim, tile, random);
      std::byte* index = indexes.data() + tile * format.bytes();
      std::memset(index, 0xee, format.bytes());
      kernels.build(rotation, format, keys.data(), values.data(), index);
      entries.push_back({index, tile, 0, false});
    }
  }

  const sketch_kernels& kernels;
  sketch_format format;
  data_kind kind;
  sketch_rotation rotation;
  aligned_array<std::byte> indexes;
  std::vector<tile_entry> entries;
};

/// Queries over them, and their scores.
struct bench {
  bench(const indexed_tiles& tiles_of, std::uint32_t heads)
      : kernels(tiles_of.kernels), format(tiles_of.format), entries(tiles_of.entries) {
    const data_kind kind = tiles_of.kind;
    const float spread = kind == data_kind::flat ? 0.05f : kind == data_kind::sharp ? 12.0f : 2.0f;
    std::mt19937 random(heads);
    std::normal_distribution<float> normal(0.0f, spread);
    queries.resize(std::size_t{heads} * format.head_dim);
    std::generate(queries.begin(), queries.end(), [&] { return normal(random); });
    if (kind == data_kind::extreme) {
      spoil_queries(heads);
    }
    selector_query asked;
    asked.values = queries.data();
    asked.heads = heads;
    asked.head_dim = format.head_dim;
    query = make_sketch_query(format, tiles_of.rotation, asked);
    kernels.prepare(query);
    scores = aligned_array<std::int16_t>(tiles * heads * tile_tokens);
    top.fill(-32768);
    kernels.score(query, entries, scores.data(), top.data());
  }

  void spoil_queries(std::uint32_t heads) {
    const auto head = [&](std::uint32_t g) {
      return queries.begin() + static_cast<std::ptrdiff_t>(g % heads * format.head_dim);
    };
    std::fill_n(head(1), format.head_dim, 0.0f);
    std::fill_n(head(2), format.head_dim, 3e38f);
    *head(3) = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(head(4), format.head_dim, 1.0f);  // one large coordinate after rotation
    std::for_each(head(5), head(5) + format.head_dim, [](float& x) { x *= 1e-42f; });
  }

  const std::int16_t* scores_of(std::size_t tile) const {
    return scores.data() + tile * query.heads * tile_tokens;
  }

  const sketch_kernels& kernels;
  sketch_format format;
  const std::vector<tile_entry>& entries;
  std::vector<float> queries;
  sketch_query query;
  aligned_array<std::int16_t> scores;
  std::array<std::int16_t, most_heads> top{};
};

using parameters = std::tuple<cpu::isa_level, std::uint32_t, std::uint32_t, data_kind>;

class sketch_kernels_agree : public testing::TestWithParam<parameters> {
 protected:
  sketch_format format() const { return {std::get<1>(GetParam()), std::get<2>(GetParam())}; }
  data_kind kind() const { return std::get<3>(GetParam()); }
  const sketch_kernels& level() const { return sketch_kernels_for(std::get<0>(GetParam())); }

  /// Calls check(scalar bench, bench of the level) for 1 to 8 heads.
  template <class Check> void for_heads(const Check& check) const {
    const indexed_tiles scalar(sketch_scalar_kernels, format(), kind());
    const indexed_tiles other(level(), format(), kind());
    for (std::uint32_t heads = 1; heads <= most_heads; ++heads) {
      SCOPED_TRACE(std::to_string(heads) + " heads");
      check(bench(scalar, heads), bench(other, heads));
    }
  }
};

TEST_P(sketch_kernels_agree, on_indexes_and_scores) {
  for_heads([&](const bench& scalar, const bench& other) {
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      ASSERT_EQ(
          std::memcmp(scalar.entries[tile].index, other.entries[tile].index, format().bytes()), 0)
          << "tile " << tile;
    }
    const std::size_t size = tiles * scalar.query.heads * tile_tokens;
    for (std::size_t i = 0; i < size; ++i) {
      ASSERT_EQ(scalar.scores[i], other.scores[i]) << "score " << i;
    }
    ASSERT_EQ(scalar.top, other.top);
  });
}

TEST_P(sketch_kernels_agree, on_counts_and_squares) {
  for_heads([&](const bench& scalar, const bench& other) {
    const std::uint32_t heads = scalar.query.heads;
    std::array<bin_counts, most_heads> expected{};
    std::array<bin_counts, most_heads> counted{};
    scalar.kernels.count(scalar.scores.data(), tiles, heads, scalar.top.data(), expected.data());
    other.kernels.count(scalar.scores.data(), tiles, heads, scalar.top.data(), counted.data());
    ASSERT_EQ(expected, counted);
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      std::array<std::int64_t, most_heads> a{};
      std::array<std::int64_t, most_heads> b{};
      scalar.kernels.square(scalar.query, scalar.entries[tile].index, scalar.scores_of(tile),
                            scalar.top.data(), a.data());
      other.kernels.square(other.query, other.entries[tile].index, scalar.scores_of(tile),
                           scalar.top.data(), b.data());
      ASSERT_EQ(a, b) << "tile " << tile;
    }
  });
}

std::array<draw_limits, most_heads> random_limits(std::uint32_t seed) {
  std::mt19937 random(seed);
  std::array<draw_limits, most_heads> limits{};
  for (draw_limits& head : limits) {
    for (std::size_t bin = 0; bin < score_bins; ++bin) {
      head.set(bin, static_cast<std::uint16_t>(random() >> (random() % 16 + 16)));
    }
  }
  return limits;
}

TEST_P(sketch_kernels_agree, on_draws) {
  for_heads([&](const bench& scalar, const bench& other) {
    const std::uint32_t heads = scalar.query.heads;
    const auto limits = random_limits(heads);
    std::vector<const std::int16_t*> all;
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      all.push_back(scalar.scores_of(tile));
      alignas(64) std::array<std::uint16_t, tile_tokens> a{};
      alignas(64) std::array<std::uint16_t, tile_tokens> b{};
      const auto seed = static_cast<std::uint32_t>(tile * 0x12345677u);
      ASSERT_EQ(
          scalar.kernels.draw(all.back(), heads, scalar.top.data(), limits.data(), seed, a.data()),
          other.kernels.draw(all.back(), heads, scalar.top.data(), limits.data(), seed, b.data()));
      ASSERT_EQ(a, b);
    }
    ASSERT_EQ(scalar.kernels.sum_limits(all, heads, scalar.top.data(), limits.data()),
              other.kernels.sum_limits(all, heads, scalar.top.data(), limits.data()));
  });
}

/// Weights and sums of one tile.
struct tile_weights {
  tile_weights(const bench& from, const sketch_kernels& kernels, std::size_t tile) {
    const std::uint64_t counted = 0x9e3779b97f4a7c15u;
    num.resize(std::size_t{from.query.heads} * from.format.head_dim, 0.25f);
    const std::byte* index = from.entries[tile].index;
    kernels.weigh(from.query, index, from.scores_of(tile), from.top.data(), counted, weights.data(),
                  sums.data());
    kernels.square_weights(from.query, index, weights.data(), moments.data(), moment_sums.data());
    kernels.rise(from.scores_of(tile), from.query.heads, weights.data(), counted, rises.data(),
                 rise_sums.data());
    kernels.add_mean_values(from.query, std::span(&index, 1), sums.data(), num.data());
  }

  alignas(64) std::array<float, most_heads * tile_tokens> weights{};
  alignas(64) std::array<float, most_heads * tile_tokens> moments{};
  alignas(64) std::array<float, most_heads * tile_tokens> rises{};
  std::array<float, most_heads> sums{};
  std::array<float, most_heads> moment_sums{};
  std::array<float, most_heads> rise_sums{};
  std::vector<float> num;
};

template <class Values>
void expect_close(const Values& expected, const Values& found, const char* what) {
  float scale = 0.0f;
  for (const float x : expected) {
    ASSERT_TRUE(std::isfinite(x)) << what;
    scale = std::max(scale, std::abs(x));
  }
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    // Terms of a sum may cancel: what is left is held to the largest of them.
    ASSERT_NEAR(expected[i], found[i], 2e-5f * std::abs(expected[i]) + 1e-6f * scale)
        << what << " " << i;
  }
}

TEST_P(sketch_kernels_agree, on_weights_to_rounding) {
  for_heads([&](const bench& scalar, const bench& other) {
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      SCOPED_TRACE("tile " + std::to_string(tile));
      const tile_weights a(scalar, scalar.kernels, tile);
      const tile_weights b(scalar, other.kernels, tile);
      expect_close(a.weights, b.weights, "weight");
      expect_close(a.sums, b.sums, "sum of weights");
      expect_close(a.moments, b.moments, "moment");
      expect_close(a.moment_sums, b.moment_sums, "sum of moments");
      expect_close(a.num, b.num, "num");
      EXPECT_EQ(a.rises, b.rises);
      for (std::size_t g = 0; g < scalar.query.heads; ++g) {
        float size = 0.0f;  // the terms cancel
        for (std::size_t i = g * tile_tokens; i < (g + 1) * tile_tokens; ++i) {
          size += a.weights[i] * std::abs(a.rises[i]);
        }
        EXPECT_NEAR(a.rise_sums[g], b.rise_sums[g], 2e-5f * size) << g;
      }
    }
  });
}

std::vector<cpu::isa_level> levels_with_kernels() {
  std::vector<cpu::isa_level> levels = cpu::available_isa_levels();
  std::erase(levels, cpu::isa_level::scalar);
  return levels;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(sketch_kernels_agree);
INSTANTIATE_TEST_SUITE_P(levels, sketch_kernels_agree,
                         testing::Combine(testing::ValuesIn(levels_with_kernels()),
                                          testing::Values(64u, 128u, 256u), testing::Values(1u, 2u),
                                          testing::Values(data_kind::normal, data_kind::flat,
                                                          data_kind::sharp, data_kind::extreme)),
                         [](const auto& given) {
                           return std::string(cpu::to_string(std::get<0>(given.param))) + "_D" +
                                  std::to_string(std::get<1>(given.param)) + "_" +
                                  std::to_string(std::get<2>(given.param)) + "bit_" +
                                  to_string(std::get<3>(given.param));
                         });

}  // namespace
}  // namespace kvtier::lsh
