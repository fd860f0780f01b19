// The selector faiss: what its indexes find, and that kept indexes find what new ones do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lsh/aligned_array.hpp"
#include "lsh/faiss_cache.hpp"
#include "lsh/faiss_index.hpp"
#include "tests/lsh/stored_head.hpp"

namespace kvtier::test {
namespace {

using lsh::certain;
using lsh::tile_entry;
using lsh::tile_tokens;

constexpr std::uint32_t head_dim = stored_head::head_dim;
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();
const std::vector<std::string> all_indexes{"hnsw", "ivf", "lsh"};

selector_config faiss(const std::string& index, const std::string& more = "budget=0.02") {
  return parse_selector("faiss:index=" + index + "," + more);
}

/// Keys around `clusters` centres, queries near some of them.
stored_head clustered_head(std::size_t tiles, std::uint32_t heads, std::uint32_t seed) {
  constexpr std::size_t clusters = 40;
  stored_head head(tiles, heads, 1.0, seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> centres(clusters * head_dim);
  std::generate(centres.begin(), centres.end(), [&] { return 2.0f * normal(random); });
  for (std::size_t token = 0; token < head.tokens(); ++token) {
    const float* const centre = centres.data() + random() % clusters * head_dim;
    for (std::size_t d = 0; d < head_dim; ++d) {
      head.keys[token * head_dim + d] += centre[d];
    }
  }
  for (std::size_t i = 0; i < head.queries.size(); ++i) {
    head.queries[i] = 0.2f * head.queries[i] + 0.2f * centres[i];
  }
  head.store();
  return head;
}

/// Of the rows chosen for one head, the share that is among as many with the largest products.
double recall(const stored_head& head, const selector_config& options) {
  const std::vector<std::uint32_t> rows = head.choose(options).rows;
  std::vector<double> weights = head.weights(0);
  std::vector<double> sorted = weights;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(rows.size()) - 1,
                   sorted.end(), std::greater<>());
  const double least = sorted[rows.size() - 1];
  const auto right = std::count_if(rows.begin(), rows.end(),
                                   [&](std::uint32_t row) { return weights[row] >= least; });
  return static_cast<double>(right) / static_cast<double>(rows.size());
}

/// A selector and the token indexes of a head's tiles: what a runtime keeps between queries.
class kept_head {
 public:
  kept_head(const stored_head& head, const selector_config& options)
      : head_(head),
        selector_(lsh::make_token_selector(options, head_dim, 1)),
        indexes_(head.tiles.size() * selector_->index_bytes(0, 0)) {
    for (std::size_t i = 0; i < head.tiles.size(); ++i) {
      list_.push_back(head.tiles[i]);
      seal(i, 0);
    }
  }

  /// Indexes what the head holds now as another content.
  void seal(std::size_t tile, std::uint64_t content) {
    const std::size_t first = tile * tile_tokens * head_dim;
    std::byte* const at = indexes_.data() + tile * selector_->index_bytes(0, 0);
    selector_->index_tile(
        {.keys = head_.keys.data() + first, .values = head_.values.data() + first}, at);
    list_[tile].index = at;
    list_[tile].content = content;
  }

  const std::vector<tile_entry>& list() const { return list_; }
  lsh::selection choose(std::span<const tile_entry> tiles, std::uint32_t layer = 0) const {
    return selector_
        ->begin(tiles, {.values = head_.queries.data(),
                        .heads = head_.heads(),
                        .head_dim = head_dim,
                        .layer = layer})
        ->choose(nullptr);
  }
  lsh::selection choose_of_first(std::size_t tiles) const {
    return choose(std::span(list_).first(tiles));
  }

 private:
  const stored_head& head_;
  std::unique_ptr<lsh::token_selector> selector_;
  lsh::aligned_array<std::byte> indexes_;
  std::vector<tile_entry> list_;
};

void expect_equal(const lsh::selection& a, const lsh::selection& b) {
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.tiles, b.tiles);
  EXPECT_EQ(a.reference, b.reference);
}

TEST(faiss_selector, finds_most_of_the_largest_products) {
  const stored_head random(32, 1, 1.0, 1);
  const stored_head clustered = clustered_head(32, 1, 2);
  EXPECT_GE(recall(random, faiss("hnsw")), .9);
  EXPECT_GE(recall(clustered, faiss("hnsw")), .9);
  EXPECT_GE(recall(clustered, faiss("ivf")), .9);
  EXPECT_GE(recall(random, faiss("ivf", "lists=64,probes=64")), .97);
  EXPECT_LE(recall(random, faiss("ivf", "lists=64,probes=4")), .6);
  // A choice at random has .02.
  EXPECT_GE(recall(random, faiss("lsh")), .15);
  EXPECT_GE(recall(random, faiss("lsh", "bits=512")), .35);
  EXPECT_GE(recall(clustered, faiss("lsh")), .4);
}

TEST(faiss_selector, breadth_buys_recall) {
  const stored_head head(32, 1, 1.0, 3);
  EXPECT_LT(recall(head, faiss("hnsw", "budget=0.005,m=4,ef=1")),
            recall(head, faiss("hnsw", "budget=0.005,m=4,ef=512")) - .2);
}

TEST(faiss_selector, lsh_takes_keys_from_their_mean) {
  stored_head head(16, 1, 1.0, 4);
  for (std::size_t i = 0; i < head.keys.size(); ++i) {
    head.keys[i] += i % head_dim < 32 ? 20.0f : -20.0f;
  }
  head.store();
  EXPECT_GE(recall(head, faiss("lsh", "budget=0.05")), .3);
}

TEST(faiss_selector, reads_exactly_the_budget_for_certain) {
  for (const std::string& index : all_indexes) {
    for (const std::uint32_t heads : {1u, 4u, 7u}) {
      const stored_head head(12, heads, 1.0, heads);
      for (const char* const budget : {"budget=0.001", "budget=0.05", "budget=0.9", "budget=1"}) {
        const selector_config options = faiss(index, budget);
        const lsh::selection chosen = head.choose(options);
        const auto rows = std::lround(768e-6 * static_cast<double>(options.budget_ppm));
        EXPECT_EQ(chosen.rows.size(), std::max(1l, rows)) << index << budget;
        EXPECT_TRUE(std::is_sorted(chosen.rows.begin(), chosen.rows.end()));
        EXPECT_EQ(std::set(chosen.rows.begin(), chosen.rows.end()).size(), chosen.rows.size());
        EXPECT_THAT(chosen.thresholds, testing::Each(certain));
        EXPECT_EQ(chosen.thresholds.size(), chosen.rows.size());
        EXPECT_FALSE(chosen.estimates);
        EXPECT_EQ(chosen.heads, heads);
      }
    }
  }
}

TEST(faiss_selector, heads_take_their_best_in_turn) {
  const stored_head head(8, 3, 1.0, 5);
  std::set<std::uint32_t> expected;
  std::vector<std::vector<double>> weights;
  for (std::uint32_t h = 0; h < 3; ++h) {
    weights.push_back(head.weights(h));
  }
  for (std::size_t turn = 0; expected.size() < 26; ++turn) {  // 5 % of 512
    auto& mine = weights[turn % 3];
    const auto best = std::max_element(mine.begin(), mine.end()) - mine.begin();
    expected.insert(static_cast<std::uint32_t>(best));
    for (auto& other : weights) {
      other[static_cast<std::size_t>(best)] = 0.0;
    }
  }
  const lsh::selection chosen =
      head.choose(faiss("ivf", "budget=0.05,lists=8,probes=8"));  // exact: all lists
  EXPECT_EQ(chosen.rows, std::vector<std::uint32_t>(expected.begin(), expected.end()));
}

TEST(faiss_selector, takes_and_pays_for_whole_tiles_at_once) {
  for (const std::string& index : all_indexes) {
    stored_head head(20, 2, 1.0, 6);
    for (std::size_t i = 0; i < 20; i += 4) {
      head.tiles[i].whole = true;
    }
    const lsh::selection chosen = head.choose(faiss(index, "budget=0.3"));
    EXPECT_FALSE(chosen.rows.empty());
    EXPECT_FALSE(chosen.tiles.empty());
    EXPECT_LE(chosen.rows.size() + chosen.tiles.size() * tile_tokens, 384u);
    EXPECT_GT(chosen.rows.size() + chosen.tiles.size() * tile_tokens, 384u - tile_tokens);
    EXPECT_THAT(chosen.tiles, testing::Each(testing::Truly([](auto i) { return i % 4 == 0; })));
    EXPECT_TRUE(std::none_of(chosen.rows.begin(), chosen.rows.end(),
                             [](std::uint32_t row) { return row / tile_tokens % 4 == 0; }));
    EXPECT_EQ(chosen.tile_thresholds.size(), chosen.tiles.size());
  }
}

TEST(faiss_selector, refers_to_the_largest_logit_read) {
  const stored_head head(8, 3, 2.0, 7);
  const lsh::selection chosen = head.choose(faiss("hnsw", "budget=0.1"));
  for (std::uint32_t h = 0; h < 3; ++h) {
    const std::vector<double> weights = head.weights(h);
    double most = 0.0;
    for (const std::uint32_t row : chosen.rows) {
      most = std::max(most, weights[row]);
    }
    EXPECT_NEAR(static_cast<double>(chosen.reference[h]), std::log(most), 1e-4);
  }
}

TEST(faiss_selector, does_not_depend_on_helpers_or_earlier_builds) {
  for (const std::string& index : all_indexes) {
    stored_head head(12, 3, 1.0, 8);
    head.tiles[5].whole = true;
    expect_same_by_any_helpers(head, faiss(index, "budget=0.1"));
  }
}

TEST(faiss_selector, a_kept_index_that_grew_finds_what_a_new_one_does) {
  for (const std::string& index : all_indexes) {
    const stored_head head(20, 2, 1.0, 9);
    const kept_head grown(head, faiss(index, "budget=0.1"));
    for (const std::size_t tiles : {3u, 4u, 17u, 18u, 19u, 20u}) {
      const kept_head fresh(head, faiss(index, "budget=0.1"));
      const lsh::selection chosen = grown.choose_of_first(tiles);
      expect_equal(chosen, fresh.choose_of_first(tiles));
      EXPECT_GE(chosen.rows.back(), (tiles - 1) * tile_tokens) << "nothing of the last tile";
    }
  }
}

TEST(faiss_selector, lists_of_forks_layers_and_shorter_lists_do_not_mix) {
  for (const std::string& index : all_indexes) {
    const stored_head head(14, 2, 1.0, 10);
    const selector_config options = faiss(index, "budget=0.1");
    const kept_head kept(head, options);
    // Of tiles 0 to 3, the fork goes on with tiles of its own.
    std::vector<tile_entry> parent(kept.list().begin(), kept.list().begin() + 9);
    std::vector<tile_entry> fork(kept.list().begin(), kept.list().begin() + 4);
    for (std::size_t i = 9; i < 14; ++i) {
      fork.push_back(kept.list()[i]);
      fork.back().number = i - 5;
      fork.back().sequence = 8;
    }
    std::vector<tile_entry> other(fork.begin(), fork.end());
    other[0].sequence = 9;
    for (int round = 0; round < 2; ++round) {
      for (const auto& list : {parent, fork, other}) {
        const kept_head fresh(head, options);
        std::vector<tile_entry> same = list;
        expect_equal(kept.choose(list), fresh.choose(same));
        expect_equal(kept.choose(std::span(list).first(4)), fresh.choose(std::span(same).first(4)));
      }
    }
    // The same list in another layer holds other keys.
    const stored_head elsewhere(14, 2, 1.0, 11);
    const kept_head there(elsewhere, options);
    std::vector<tile_entry> list(there.list().begin(), there.list().begin() + 9);
    expect_equal(kept.choose(list, 1), kept_head(head, options).choose(list, 1));
  }
}

TEST(faiss_selector, tiles_that_took_the_place_of_dropped_ones_are_not_taken_for_them) {
  for (const std::string& index : all_indexes) {
    stored_head head(9, 2, 1.0, 13);
    const stored_head others(9, 2, 1.0, 14);
    kept_head kept(head, faiss(index, "budget=0.1"));
    kept.choose(kept.list());
    // A truncated sequence seals other tokens; their indexes may lie where the dropped ones' lay.
    const std::ptrdiff_t first = 4 * tile_tokens * head_dim;
    std::copy(others.keys.begin() + first, others.keys.end(), head.keys.begin() + first);
    for (std::size_t tile = 4; tile < 9; ++tile) {
      kept.seal(tile, 1);
    }
    const kept_head fresh(head, faiss(index, "budget=0.1"));
    expect_equal(kept.choose(kept.list()), fresh.choose(fresh.list()));
  }
}

TEST(faiss_cache, drops_what_was_used_longest_ago) {
  const stored_head head(4, 1, 1.0, 12);
  const selector_config options = faiss("ivf");
  const kept_head kept(head, options);
  const std::size_t one = [&] {
    lsh::faiss_index index(options, head_dim);
    index.cover(kept.list());
    return index.bytes();
  }();
  lsh::faiss_cache cache(options, head_dim, 2 * one + one / 2);
  const auto use = [&](std::uint32_t layer) {
    const lsh::faiss_index* used = nullptr;
    cache.use(kept.list(), layer, 0, [&](const lsh::faiss_index& index) { used = &index; });
    return used;
  };
  const auto* const first = use(0);
  use(1);
  EXPECT_EQ(use(0), first);
  use(2);
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(use(0), first);  // layer 1 is gone
  lsh::faiss_cache tiny(options, head_dim, 1);
  tiny.use(kept.list(), 0, 0, [](const lsh::faiss_index& index) { EXPECT_EQ(index.tiles(), 4u); });
  EXPECT_EQ(tiny.size(), 1u);
}

TEST(faiss_cache, threads_with_lists_of_one_line_each_find_their_own) {
  for (const std::string& index : all_indexes) {
    const stored_head head(12, 1, 1.0, 13);
    const kept_head kept(head, faiss(index, "budget=0.1"));
    std::vector<lsh::selection> expected;
    for (std::size_t tiles = 9; tiles <= 12; ++tiles) {
      expected.push_back(kept_head(head, faiss(index, "budget=0.1")).choose_of_first(tiles));
    }
    std::vector<std::thread> threads;
    std::vector<int> different(4, 0);
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t round = 0; round < 8; ++round) {
          const std::size_t which = (round / 2 + t) % 4;
          different[t] += kept.choose_of_first(9 + which).rows != expected[which].rows ? 1 : 0;
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_THAT(different, testing::Each(0));
  }
}

TEST(faiss_selector, bad_numbers_do_no_harm) {
  for (const std::string& index : all_indexes) {
    stored_head head(6, 2, 1.0, 14, element_type::fp32);
    head.keys[0] = nan;
    head.keys[70 * head_dim] = infinity;
    head.keys[200 * head_dim + 1] = -3e38f;
    std::fill_n(head.keys.begin() + 300 * head_dim, head_dim, 0.0f);
    head.store();
    head.queries[0] = 3e38f;
    head.queries[1] = infinity;
    std::fill_n(head.queries.begin() + head_dim, head_dim, nan);
    const lsh::selection chosen = head.choose(faiss(index, "budget=0.1"));
    EXPECT_EQ(chosen.rows.size(), 38u);
    EXPECT_THAT(chosen.reference,
                testing::Each(testing::Truly([](float x) { return std::isfinite(x); })));
    stored_head same(2, 2, 1.0, 14);
    std::fill(same.keys.begin(), same.keys.end(), 1.0f);
    same.store();
    EXPECT_EQ(same.choose(faiss(index, "budget=1")).rows.size(), 128u);
  }
}

TEST(faiss_selector, an_empty_list_gives_an_empty_selection) {
  const lsh::selection chosen = stored_head(0, 2, 1.0, 15).choose(faiss("hnsw"));
  EXPECT_TRUE(chosen.rows.empty());
  EXPECT_THAT(chosen.reference, testing::ElementsAre(-infinity, -infinity));
}

TEST(faiss_selector, refuses_keys_and_bad_options) {
  const auto selector = lsh::make_token_selector(faiss("hnsw"), 128, 1);
  EXPECT_FALSE(selector->reads_keys());
  EXPECT_EQ(selector->index_bytes(0, 0), 16384u);
  const std::vector<float> values(128);
  const auto begun = selector->begin({}, {.values = values.data(), .heads = 1, .head_dim = 128});
  EXPECT_THROW(begun->see(0, nullptr, element_type::bf16), std::logic_error);
  EXPECT_THROW(selector->begin({}, {.values = values.data(), .heads = 1, .head_dim = 64}),
               std::invalid_argument);
  const auto refused = [](auto change) {
    selector_config options = faiss("hnsw");
    change(options);
    EXPECT_THROW(lsh::make_token_selector(options, 64, 1), std::invalid_argument);
  };
  refused([](auto& options) { options.budget_ppm = 0; });
  refused([](auto& options) { options.faiss_m = 1; });
  refused([](auto& options) { options.faiss_ef = 65537; });
  refused([](auto& options) { options.faiss_probes = 0; });
  refused([](auto& options) { options.faiss_lists = 65537; });
  refused([](auto& options) { options.faiss_bits = 1025; });
  refused([](auto& options) { options.faiss_index = static_cast<faiss_kind>(9); });
  EXPECT_THROW(lsh::make_token_selector(faiss("hnsw"), 63, 1), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::test
