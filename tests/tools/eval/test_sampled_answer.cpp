// One draw by the library's own path: what it reads, what it merges, how it grows.
#include "tools/eval/sampled_answer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "lsh/adaptive_budget.hpp"
#include "lsh/sampled_attention.hpp"
#include "tests/support/reference_estimate.hpp"
#include "tests/support/reference_finish.hpp"
#include "tests/tools/eval/made_case.hpp"
#include "tools/eval/synthetic_heads.hpp"

namespace kvtier::eval {
namespace {

using test::made_case;

/// A case, judged and indexed.
class asked_case {
 public:
  asked_case(head_case data, const std::string& text, double disk = 0.0,
             const exact_window& window = {})
      : data_(std::move(data)),
        stored_(data_, window),
        judged_(judge(stored_, 0)),
        options_(parse_selector(text)),
        selector_(lsh::make_token_selector(options_, data_.head_dim, 11)),
        indexed_(stored_, *selector_, disk) {}

  sampled_answer answered() const { return answer(indexed_, judged_, *selector_, options_); }

  const head_case& data() const { return data_; }
  const stored_case& stored() const { return stored_; }
  const judged_query& judged() const { return judged_; }
  const selector_config& options() const { return options_; }
  const lsh::token_selector& selector() const { return *selector_; }
  const indexed_case& indexed() const { return indexed_; }
  std::size_t tokens() const { return judged_.tiles * lsh::tile_tokens; }

 private:
  const head_case data_;
  const stored_case stored_;
  const judged_query judged_;
  const selector_config options_;
  const std::unique_ptr<lsh::token_selector> selector_;
  const indexed_case indexed_;
};

/// Nothing where this build has no such selector (FAISS).
std::unique_ptr<asked_case> try_case(const head_case& data, const std::string& text, double disk) {
  try {
    return std::make_unique<asked_case>(data, text, disk);
  } catch (const std::invalid_argument&) {
    if (!text.starts_with("faiss")) {
      throw;
    }
    return nullptr;
  }
}

double relative_error(const std::vector<float>& got, const std::vector<double>& want) {
  double apart = 0.0, size = 0.0;
  for (std::size_t d = 0; d < want.size(); ++d) {
    apart += (double{got[d]} - want[d]) * (double{got[d]} - want[d]);
    size += want[d] * want[d];
  }
  return std::sqrt(apart / size);
}

void expect_well_formed(const asked_case& asked, const sampled_answer& given, double disk) {
  const auto tiles = static_cast<std::uint32_t>(asked.judged().tiles);
  const auto wholes = static_cast<std::uint32_t>(std::lround(disk * tiles));
  EXPECT_TRUE(std::is_sorted(given.rows.begin(), given.rows.end()));
  EXPECT_EQ(std::adjacent_find(given.rows.begin(), given.rows.end()), given.rows.end());
  EXPECT_TRUE(std::is_sorted(given.tiles.begin(), given.tiles.end()));
  EXPECT_EQ(std::adjacent_find(given.tiles.begin(), given.tiles.end()), given.tiles.end());
  for (const std::uint32_t row : given.rows) {
    ASSERT_GE(row / lsh::tile_tokens, wholes) << "a single row of a tile that is read as a whole";
    ASSERT_LT(row / lsh::tile_tokens, tiles);
  }
  for (const std::uint32_t tile : given.tiles) {
    ASSERT_LT(tile, wholes);
  }
  std::size_t read = 0;
  for (std::size_t token = 0; token < asked.tokens(); ++token) {
    const bool among = std::count(given.rows.begin(), given.rows.end(), token) > 0 ||
                       std::count(given.tiles.begin(), given.tiles.end(), token / 64) > 0;
    ASSERT_EQ(given.has_read(token), among) << token;
    read += among ? 1 : 0;
  }
  EXPECT_EQ(given.rows_read(), read);
  EXPECT_EQ(given.o.size(), asked.data().heads);
  EXPECT_EQ(given.reports.size(), asked.data().heads);
}

const std::vector<std::string> everything{
    "topk:budget=1",
    "topp:mass=1",
    "uniform:budget=1",
    "oracle:budget=1",
    "quest:budget=1",
    "quest:budget=1,page=64",
    "vattention:budget=1",
    "vattention:budget=1,epsilon=0.05,cap=1",
    "faiss:budget=1,index=hnsw,ef=4096",
    "faiss:budget=1,index=ivf,probes=65536",
    "faiss:budget=1,index=lsh",
    "sketch:budget=1",
    "sketch:budget=1,bits=1",
    "sketch:budget=1,estimator=ht",
    "sketch:budget=1,bits=1,estimator=ht",
    "sketch:budget=1,epsilon=0.05,cap=1",
};

struct case_shape {
  std::uint32_t heads, head_dim;
  element_type element;
  std::uint64_t tokens;
};

/// Asks each selector over host rows, disk tiles and both, and hands what is well formed to `look`.
template <class Look>
void ask_everywhere(const case_shape& each, const std::vector<std::string>& selectors,
                    const Look& look) {
  const head_case data = made_case({.tokens = each.tokens,
                                    .heads = each.heads,
                                    .head_dim = each.head_dim,
                                    .element = each.element});
  for (const std::string& text : selectors) {
    for (const double disk : {0.0, .5, 1.0}) {
      SCOPED_TRACE(text + " of " + std::to_string(each.tokens) + " tokens, disk " +
                   std::to_string(disk));
      const auto asked = try_case(data, text, disk);
      if (asked == nullptr) {
        continue;
      }
      const sampled_answer given = asked->answered();
      expect_well_formed(*asked, given, disk);
      look(*asked, given);
    }
  }
}

TEST(sampled_answer, a_budget_of_everything_is_exact) {
  for (const case_shape each : {case_shape{4, 64, element_type::bf16, 68 + 10 * 64 + 13},
                                case_shape{1, 256, element_type::fp32, 68 + 5 * 64},
                                case_shape{8, 128, element_type::fp16, 68 + 4 * 64 + 63},
                                case_shape{2, 64, element_type::bf16, 68 + 64}}) {
    ask_everywhere(each, everything, [&](const auto& asked, const sampled_answer& given) {
      EXPECT_EQ(given.rows_read(), asked.tokens());
      for (std::uint32_t head = 0; head < each.heads; ++head) {
        EXPECT_LT(relative_error(given.o[head], asked.judged().exact[head].o), 1e-5);
      }
    });
  }
}

const std::vector<std::string> parts{
    "topk:budget=0.1",
    "topp:mass=0.6",
    "uniform:budget=0.1",
    "oracle:budget=0.1",
    "quest:budget=0.1",
    "vattention:budget=0.1",
    "vattention:budget=0.1,epsilon=0.2",
    "faiss:budget=0.1,index=hnsw",
    "faiss:budget=0.1,index=ivf",
    "faiss:budget=0.1,index=lsh",
    "lsh:k=6,l=60",
    "lsh:k=6,l=60,query_aware=yes",
    "sketch:budget=0.1",
    "sketch:budget=0.1,bits=1",
    "sketch:budget=0.1,estimator=ht",
    "sketch:budget=0.1,epsilon=0.2",
};

TEST(sampled_answer, every_selector_reads_what_it_says_wherever_tiles_lie) {
  for (const case_shape each : {case_shape{4, 64, element_type::bf16, 68 + 20 * 64 + 13},
                                case_shape{1, 64, element_type::fp16, 68 + 64},
                                case_shape{8, 256, element_type::fp32, 68 + 6 * 64}}) {
    ask_everywhere(each, parts, [&](const auto& asked, const sampled_answer& given) {
      for (std::uint32_t head = 0; head < each.heads; ++head) {
        // Not right, but of the size of an answer.
        EXPECT_LT(relative_error(given.o[head], asked.judged().exact[head].o), 3.0);
        EXPECT_FALSE(given.reports[head].error_bound < 0.0F);
      }
    });
  }
}

TEST(sampled_answer, works_without_a_window) {
  for (const bool known : {true, false}) {
    for (const std::string& text : parts) {
      SCOPED_TRACE(text);
      const head_case data = made_case({.tokens = std::size_t{8} * 64});
      const exact_window window{.sinks = 0, .recent = 0, .mass_known = known};
      std::optional<asked_case> asked;
      try {
        asked.emplace(data, text, 0.0, window);
      } catch (const std::invalid_argument&) {
        ASSERT_TRUE(text.starts_with("faiss"));
        continue;
      }
      const sampled_answer given = asked->answered();
      for (const std::vector<float>& o : given.o) {
        EXPECT_TRUE(std::all_of(o.begin(), o.end(), [](float x) { return std::isfinite(x); }));
      }
    }
  }
}

TEST(sampled_answer, only_an_estimate_or_an_exact_answer_has_a_bound) {
  const head_case data = made_case();
  for (const char* const text : {"topk:budget=0.1", "uniform:budget=0.1", "oracle:budget=0.1",
                                 "quest:budget=0.1", "lsh:k=6,l=60"}) {
    SCOPED_TRACE(text);
    for (const gpu::row_report& report : asked_case(data, text).answered().reports) {
      EXPECT_TRUE(std::isnan(report.error_bound));
      EXPECT_EQ(report.certified, 0u);
    }
  }
  for (const gpu::row_report& report : asked_case(data, "topk:budget=1").answered().reports) {
    EXPECT_EQ(report.error_bound, 0.0F);
    EXPECT_EQ(report.certified, 1u);
  }
  for (const gpu::row_report& report : asked_case(data, "sketch:budget=0.1").answered().reports) {
    EXPECT_GT(report.error_bound, 0.0F);
  }
}

test::tile_rows rows_of(const head_case& data, const stored_case& stored) {
  const float* const keys = stored.tile_keys(0);
  const float* const values = stored.tile_values(0);
  const std::size_t numbers = stored.tiles() * lsh::tile_tokens * data.head_dim;
  return {{keys, keys + numbers}, {values, values + numbers}};
}

/// Against the selection's sums and their merge, all in float64.
void expect_reference_merge(const asked_case& asked) {
  const head_case& data = asked.data();
  const lsh::selector_query query{.values = data.queries[0].values.data(),
                                  .heads = data.heads,
                                  .head_dim = data.head_dim,
                                  .window_mass = asked.judged().window_mass.data(),
                                  .step = data.queries[0].step,
                                  .layer = data.layer,
                                  .kv_head = data.kv_head};
  const auto tiles = asked.indexed().tiles(asked.judged().tiles);
  const lsh::selection chosen = asked.selector().begin(tiles, query)->choose(nullptr);
  const auto wanted = test::reference_estimate(chosen, tiles, query, rows_of(data, asked.stored()));
  // Only what it measures of directions is the library's.
  lsh::sampled_attention attention(chosen, tiles, query, data.element);
  std::vector<const std::byte*> rows;
  for (const std::uint32_t row : chosen.rows) {
    rows.push_back(asked.stored().row(row / 64, row % 64));
  }
  for (std::size_t i = 0; i < chosen.tiles.size(); ++i) {
    std::vector<const std::byte*> tile;
    for (std::uint32_t token = 0; token < 64; ++token) {
      tile.push_back(asked.stored().row(chosen.tiles[i], token));
    }
    attention.read_tile(i, tile.data());
  }
  attention.read_rows(rows.data(), nullptr);
  const auto sums = attention.finish(nullptr);

  const sampled_answer given = asked.answered();
  EXPECT_EQ(given.rows, chosen.rows);
  EXPECT_EQ(given.tiles, chosen.tiles);
  EXPECT_EQ(given.rounds, 1);
  for (std::size_t head = 0; head < data.heads; ++head) {
    test::estimate_sums host = wanted[head].sums;
    host.nu = sums[head].directions;
    host.cb = sums[head].hidden;
    const attended_head& window = asked.judged().window[head];
    const test::finished_row want = test::reference_finish(
        window.o, window.lse, host, asked.options().estimator == estimator_kind::ht);
    EXPECT_LT(relative_error(given.o[head], want.o), 2e-5);
    EXPECT_NEAR(given.reports[head].error_bound, want.bound, 2e-3 * want.bound);
    EXPECT_NEAR(given.reports[head].shrink, want.beta, 2e-3);
    EXPECT_NEAR(given.reports[head].terms, want.n, 1e-3 * want.n);
    if (!wanted[head].audited) {
      EXPECT_EQ(given.reports[head].certified, 0u);
    }
  }
}

TEST(sampled_answer, is_merged_as_in_float64) {
  for (const char* const text :
       {"sketch:budget=0.1", "sketch:budget=0.02,bits=1", "sketch:budget=0.1,estimator=ht"}) {
    for (const double disk : {0.0, .5, 1.0}) {
      for (const std::uint32_t heads : {1U, 4U, 8U}) {
        SCOPED_TRACE(std::string(text) + " of " + std::to_string(heads) + " heads, disk " +
                     std::to_string(disk));
        expect_reference_merge(asked_case(
            made_case({.tokens = 68 + 40 * 64, .heads = heads, .head_dim = 128}), text, disk));
      }
    }
  }
}

/// A synthetic head of 4096 tokens.
head_case synthetic(synthetic_kind kind) {
  return make_synthetic_case({.kind = kind, .tokens = 4096, .head_dim = 64});
}

TEST(sampled_answer, grows_until_every_bound_is_met) {
  for (const char* const text : {"sketch:budget=0.002,epsilon=0.05,cap=1",
                                 "sketch:budget=0.002,epsilon=0.05,cap=1,estimator=ht"}) {
    SCOPED_TRACE(text);
    const asked_case asked(synthetic(synthetic_kind::g2), text);
    const sampled_answer given = asked.answered();
    EXPECT_GT(given.rounds, 1);
    EXPECT_LE(given.rounds, 1 + lsh::growth_rounds);
    for (const gpu::row_report& report : given.reports) {
      EXPECT_LE(report.error_bound, .05F);
    }
    EXPECT_LT(given.rows_read(), asked.tokens());
  }
}

TEST(sampled_answer, grows_no_further_than_its_target) {
  const head_case data = synthetic(synthetic_kind::g2);
  const sampled_answer once = asked_case(data, "sketch:budget=0.1").answered();
  const sampled_answer wide = asked_case(data, "sketch:budget=0.1,epsilon=1").answered();
  EXPECT_EQ(wide.rounds, 1);
  EXPECT_EQ(wide.rows, once.rows);
  EXPECT_EQ(wide.o, once.o);
  std::size_t last = once.rows_read();
  for (const char* const epsilon : {"0.05", "0.02", "0.01"}) {
    const sampled_answer given =
        asked_case(data, std::string("sketch:budget=0.002,cap=1,epsilon=") + epsilon).answered();
    EXPECT_TRUE(given.rows_read() > last || epsilon == std::string("0.05")) << epsilon;
    last = given.rows_read();
  }
}

TEST(sampled_answer, the_cap_ends_growth) {
  for (const char* const kind : {"sketch:", "sketch:estimator=ht,", "vattention:"}) {
    for (const double cap : {.05, .25}) {
      SCOPED_TRACE(kind + std::to_string(cap));
      const asked_case asked(
          synthetic(synthetic_kind::flat),
          kind + std::string("budget=0.01,epsilon=0.000001,cap=") + std::to_string(cap));
      const sampled_answer given = asked.answered();
      const double rows =
          static_cast<double>(given.rows_read()) / static_cast<double>(asked.tokens());
      EXPECT_NEAR(rows, cap, .2 * cap);
      EXPECT_LE(given.rounds, 1 + lsh::growth_rounds);
      expect_well_formed(asked, given, 0.0);
    }
  }
}

TEST(sampled_answer, growth_keeps_whole_tiles_and_adds_rows) {
  const head_case data = synthetic(synthetic_kind::g3);
  const sampled_answer first = asked_case(data, "sketch:budget=0.02", .5).answered();
  const asked_case asked(data, "sketch:budget=0.02,epsilon=0.01,cap=0.5", .5);
  const sampled_answer grown = asked.answered();
  EXPECT_GT(grown.rounds, 1);
  EXPECT_EQ(grown.tiles, first.tiles);
  EXPECT_GT(grown.rows.size(), first.rows.size());
  EXPECT_TRUE(
      std::includes(grown.rows.begin(), grown.rows.end(), first.rows.begin(), first.rows.end()));
  expect_well_formed(asked, grown, .5);
}

}  // namespace
}  // namespace kvtier::eval
