// Sampled steps through the runtime: exact at budget 1, the same whatever the timing, counted,
// bounded, and refused or lost where they must be.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "lsh/token_selector.hpp"
#include "tests/support/runtime_kit.hpp"
#include "tests/support/toy_engine.hpp"

namespace kvtier {
namespace {

struct tiers_case {
  const char* name;
  test::tier_sizes sizes;
  std::uint32_t block_tokens;
};

/// Of the small shape, whose middle layer is sliding: both kinds in a full layer.
const std::vector<std::uint8_t> mixed_bits{2, 1, 1, 1, 1, 2};

config sampling_config(const tiers_case& tiers, const std::string& selector,
                       std::uint64_t delay_seed) {
  config options = test::small_config(tiers.sizes, tiers.block_tokens, delay_seed);
  options.selector = parse_selector(selector);
  if (options.selector.bits == 0) {
    options.head_bits = mixed_bits;
  }
  const auto index = lsh::make_token_selector(options.selector, options.shape.head_dim, 0,
                                              {options.head_bits, options.shape.kv_heads});
  if (index != nullptr) {  // token indexes of every tile that the tiers hold
    options.host_memory += std::uint64_t{270} * index->index_bytes(0, 0);
  }
  options.seed = 77;
  return options;
}

const tiers_case host_64{"host_64", {.device_extents = 8, .host_extents = 60}, 64};
const tiers_case disk_16{
    "disk_16", {.device_extents = 8, .host_extents = 5, .disk_extents = 60}, 16};
const tiers_case disk_64{
    "disk_64", {.device_extents = 8, .host_extents = 5, .disk_extents = 60}, 64};
const tiers_case disk_128{
    "disk_128", {.device_extents = 6, .host_extents = 4, .disk_extents = 30}, 128};

/// A sequence of 1,100 tokens: an exact prompt and, by the selector, a question of several tokens
/// and some of one token each.
void converse(runtime& target, test::toy_engine& engine, test::toy_sequence& sequence) {
  ASSERT_EQ(target.create_sequence({.max_tokens = 1200}, &sequence.handle), status::ok);
  for (int i = 0; i < 16; ++i) {
    ASSERT_EQ(engine.run({{.target = &sequence, .tokens = 64, .exact = true}}), status::ok);
  }
  for (std::uint32_t done = 0, most = target.max_sampled_tokens(1); done < 20;) {
    ASSERT_GT(most, 1u);
    const std::uint32_t tokens = std::min(most, 20 - done);
    ASSERT_EQ(engine.run({{.target = &sequence, .tokens = tokens}}), status::ok);
    done += tokens;
  }
  for (int i = 0; i < 12; ++i) {
    ASSERT_EQ(engine.run({{.target = &sequence, .tokens = 1}}), status::ok);
  }
}

class whole_budget : public testing::TestWithParam<std::tuple<tiers_case, std::string>> {};

TEST_P(whole_budget, is_exact_attention) {
  const auto& [tiers, selector] = GetParam();
  const auto target = runtime::open(sampling_config(tiers, selector, 5));
  test::toy_engine engine(*target, 1, 5e-5);
  engine.check_every(16);
  test::toy_sequence sequence;
  converse(*target, engine, sequence);
  const row_counters rows = sequence.handle.rows();
  EXPECT_GT(rows.offloaded, 0u);
  EXPECT_EQ(rows.loaded, rows.offloaded);
  const error_counters errors = sequence.handle.errors();
  EXPECT_GT(errors.rows, 0u);
  if (tiers.sizes.disk_extents > 0) {
    EXPECT_GT(target->stats().disk_read_bytes, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(selectors, whole_budget,
                         testing::Combine(testing::Values(host_64, disk_16, disk_64, disk_128),
                                          testing::Values("sketch:budget=1,bits=2",
                                                          "sketch:budget=1,bits=1,estimator=ht",
                                                          "sketch:budget=1,bits=auto",
                                                          "topk:budget=1")),
                         [](const auto& instance) {
                           const std::string& selector = std::get<1>(instance.param);
                           const bool ht = selector.find("=ht") != std::string::npos;
                           const bool mixed = selector.find("=auto") != std::string::npos;
                           return std::string(std::get<0>(instance.param).name) + "_" +
                                  selector.substr(0, selector.find(':')) + (ht ? "_ht" : "") +
                                  (mixed ? "_auto" : "");
                         });

// The baselines share all of the runtime; one kind of tiers is enough.
INSTANTIATE_TEST_SUITE_P(baselines, whole_budget,
                         testing::Combine(testing::Values(disk_64),
                                          testing::Values("topp:mass=1", "uniform:budget=1",
                                                          "oracle:budget=1", "quest:budget=1",
                                                          "vattention:budget=1")),
                         [](const auto& instance) {
                           const std::string& selector = std::get<1>(instance.param);
                           return selector.substr(0, selector.find(':'));
                         });

/// All outputs of a conversation, bit by bit.
std::vector<float> outputs_of(config options) {
  const auto target = runtime::open(std::move(options));
  test::toy_engine engine(*target, 3, 0.0);
  engine.check_every(0);
  std::vector<float> all;
  const std::size_t width = std::size_t{target->shape().query_heads} * target->shape().head_dim;
  engine.observe([&](const test::toy_engine::output& one) {
    if (one.position >= 1024) {
      all.insert(all.end(), one.o, one.o + width);
    }
  });
  test::toy_sequence sequence;
  converse(*target, engine, sequence);
  return all;
}

void expect_same(const std::vector<float>& first, config other, const std::string& selector) {
  const std::vector<float> second = outputs_of(std::move(other));
  ASSERT_EQ(second.size(), first.size());
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0) << selector;
}

TEST(sampling, outputs_do_not_depend_on_delays_or_threads) {
  for (const std::string selector :
       {"sketch:budget=0.1", "sketch:budget=0.03,estimator=ht", "topk:budget=0.1"}) {
    const std::vector<float> first = outputs_of(sampling_config(disk_64, selector, 0));
    ASSERT_FALSE(first.empty());
    config threaded = sampling_config(disk_64, selector, 0);
    threaded.threads = 3;
    config threads_io = sampling_config(disk_64, selector, 12);
    threads_io.io = "threads";
    expect_same(first, sampling_config(disk_64, selector, 99), selector);
    expect_same(first, std::move(threaded), selector);
    expect_same(first, std::move(threads_io), selector);
    config reseeded = sampling_config(disk_64, selector, 0);
    reseeded.seed = 78;
    if (selector[0] == 's') {
      EXPECT_NE(outputs_of(reseeded), first) << "the seed draws the sample";
    }
  }
}

TEST(sampling, a_table_of_bits_draws_what_those_bits_draw) {
  const auto with = [](const std::string& selector, std::vector<std::uint8_t> table) {
    config options = sampling_config(disk_64, "sketch:budget=0.1", 0);
    options.selector = parse_selector(selector);
    options.head_bits = std::move(table);
    options.host_memory += 1 << 20;
    return options;
  };
  const auto fixed = [&](const char* bits) {
    return outputs_of(with(std::string("sketch:budget=0.1,bits=") + bits, {}));
  };
  const std::string automatic = "sketch:budget=0.1,bits=auto";
  const std::vector<float> one = fixed("1"), two = fixed("2");
  ASSERT_NE(one, two);
  expect_same(one, with(automatic, std::vector<std::uint8_t>(6, 1)), "all 1");
  expect_same(two, with(automatic, std::vector<std::uint8_t>(6, 2)), "all 2");
  const std::vector<float> mixed = outputs_of(with(automatic, mixed_bits));
  EXPECT_NE(mixed, one);
  EXPECT_NE(mixed, two);
}

TEST(sampling, one_bit_where_it_is_enough_saves_memory) {
  const auto used = [](const std::string& selector) {
    const auto target = runtime::open(sampling_config(host_64, selector, 0));
    test::toy_engine engine(*target, 4, 0.0);
    engine.check_every(0);
    test::toy_sequence sequence;
    converse(*target, engine, sequence);
    EXPECT_LE(target->stats().host.peak_bytes, target->stats().host.cap_bytes);
    return target->stats().index_bytes;
  };
  const std::uint64_t one = used("sketch:bits=1"), two = used("sketch:bits=2");
  EXPECT_LT(one, two);
  EXPECT_EQ(used("sketch:bits=auto") * 2, one + two) << "half of the heads have each";
}

TEST(sampling, outputs_of_other_selectors_do_not_depend_on_them_either) {
  for (const std::string selector : {"sketch:budget=0.03,epsilon=0.1,cap=0.3", "lsh:k=6,l=20"}) {
    config hurried = sampling_config(disk_64, selector, 99);
    hurried.threads = 3;
    hurried.io = "threads";
    expect_same(outputs_of(sampling_config(disk_64, selector, 0)), std::move(hurried), selector);
  }
}

/// Errors of all sampled rows beside their reports.
struct measured {
  double error_sum = 0.0;
  std::uint64_t rows = 0, certified = 0, covered = 0;
};

measured measure(runtime& target, test::toy_engine& engine) {
  measured sum;
  engine.check_every(0);
  engine.observe([&](const test::toy_engine::output& one) {
    if (one.position < 1024 || target.shape().kind(one.layer).sliding()) {
      return;
    }
    const std::vector<double> truth =
        engine.reference(*one.target, one.layer, one.position, nullptr);
    const std::size_t dim = target.shape().head_dim;
    for (std::size_t head = 0; head < target.shape().query_heads; ++head) {
      double error = 0.0, norm = 0.0;
      for (std::size_t d = head * dim; d < (head + 1) * dim; ++d) {
        error += std::pow(truth[d] - static_cast<double>(one.o[d]), 2);
        norm += truth[d] * truth[d];
      }
      const double relative = std::sqrt(error / norm);
      const gpu::row_report& report = one.reports[head];
      sum.error_sum += relative;
      ++sum.rows;
      sum.certified += report.certified;
      const double bound = double{report.error_bound} + 1e-5;  // fp32 sums where 0 is claimed
      sum.covered += report.certified != 0 && relative <= bound ? 1u : 0u;
    }
  });
  test::toy_sequence sequence;
  converse(target, engine, sequence);
  const error_counters counted = sequence.handle.errors();
  EXPECT_EQ(counted.rows, sum.rows);
  EXPECT_EQ(counted.certified, sum.certified);
  EXPECT_EQ(target.stats().errors.rows, sum.rows);
  return sum;
}

TEST(sampling, error_falls_with_the_budget_and_is_bounded) {
  double last = 1e9;
  for (const std::string budget : {"0.02", "0.1", "0.4", "1"}) {
    const auto target = runtime::open(sampling_config(host_64, "sketch:budget=" + budget, 0));
    test::toy_engine engine(*target, 4, 0.0);
    const measured sum = measure(*target, engine);
    const double error = sum.error_sum / static_cast<double>(sum.rows);
    EXPECT_LT(error, last) << budget;
    last = error;
    // Nominally 95 %; the rows of one run are few and not independent.
    EXPECT_GE(static_cast<double>(sum.covered), 0.85 * static_cast<double>(sum.certified));
    EXPECT_GE(static_cast<double>(sum.certified), 0.9 * static_cast<double>(sum.rows)) << budget;
  }
  EXPECT_LT(last, 1e-4);
}

TEST(sampling, an_error_target_reads_on_as_far_as_its_cap) {
  struct outcome {
    double error, read;
  };
  const auto with = [](const std::string& options) {
    const auto target = runtime::open(sampling_config(host_64, "sketch:budget=0.02" + options, 0));
    test::toy_engine engine(*target, 4, 0.0);
    const measured sum = measure(*target, engine);
    const row_counters rows = target->stats().rows;
    return outcome{sum.error_sum / static_cast<double>(sum.rows), rows.attended_fraction()};
  };
  const outcome loose = with(",epsilon=0.3,cap=1"), tight = with(",epsilon=0.03,cap=1");
  const outcome capped = with(",epsilon=0.000001,cap=0.4");
  EXPECT_GT(tight.read, 1.2 * loose.read);
  EXPECT_LT(tight.error, loose.error);
  EXPECT_LT(tight.error, 0.03);
  EXPECT_NEAR(capped.read, 0.4, 0.06) << "no target can be met at one millionth";
}

TEST(sampling, rows_read_are_the_budget) {
  const auto target = runtime::open(sampling_config(host_64, "sketch:budget=0.1", 0));
  test::toy_engine engine(*target, 5, 0.0);
  engine.check_every(0);
  test::toy_sequence sequence;
  converse(*target, engine, sequence);
  EXPECT_NEAR(sequence.handle.rows().attended_fraction(), 0.1, 0.02);
  EXPECT_EQ(sequence.handle.rows().keys_scored, 0u);
  const runtime_stats stats = target->stats();
  EXPECT_GT(stats.index_bytes, 0u);
  EXPECT_LE(stats.host.peak_bytes, stats.host.cap_bytes);
}

TEST(sampling, magic_pig_reads_what_collides_from_host_and_disk) {
  const auto target = runtime::open(sampling_config(disk_64, "lsh:k=5,l=24", 0));
  test::toy_engine engine(*target, 5, 0.0);
  engine.check_every(0);
  std::uint64_t finite = 0, rows = 0;
  engine.observe([&](const test::toy_engine::output& one) {
    if (one.position < 1024 || target->shape().kind(one.layer).sliding()) {
      return;
    }
    for (std::size_t head = 0; head < target->shape().query_heads; ++head) {
      ++rows;
      finite += std::isfinite(one.o[head * target->shape().head_dim]) ? 1u : 0u;
      EXPECT_EQ(one.reports[head].certified, 0u) << "it has no error bound";
    }
  });
  test::toy_sequence sequence;
  converse(*target, engine, sequence);
  EXPECT_GT(rows, 0u);
  EXPECT_EQ(finite, rows);
  const row_counters read = sequence.handle.rows();
  EXPECT_GT(read.loaded, 0u);
  EXPECT_LT(read.loaded, read.offloaded);
  EXPECT_EQ(read.keys_scored, 0u);
  EXPECT_GT(target->stats().disk_read_bytes, 0u);
  EXPECT_GT(target->stats().index_bytes, 0u);
}

TEST(sampling, top_k_counts_the_keys_it_scored_apart) {
  const auto target = runtime::open(sampling_config(disk_64, "topk:budget=0.1", 0));
  test::toy_engine engine(*target, 6, 0.0);
  engine.check_every(0);
  std::uint64_t unknown = 0;
  engine.observe([&](const test::toy_engine::output& one) {
    const gpu::row_report& report = one.reports[0];
    unknown += std::isnan(report.error_bound) && report.certified == 0 ? 1u : 0u;
  });
  test::toy_sequence sequence;
  converse(*target, engine, sequence);
  const row_counters rows = sequence.handle.rows();
  EXPECT_EQ(rows.keys_scored, rows.offloaded);
  EXPECT_LT(rows.attended_fraction(), 0.25);  // a disk tile is read whole
  EXPECT_EQ(sequence.handle.errors().certified, 0u);
  EXPECT_TRUE(std::isnan(sequence.handle.errors().mean_bound()));
  EXPECT_EQ(unknown, 2u * 32);
  EXPECT_EQ(target->stats().index_bytes, 0u);
}

TEST(sampling, exact_requests_and_dense_layers_read_everything) {
  config options = sampling_config(disk_64, "sketch:budget=0.02", 0);
  options.dense_layers = {0, 2};
  const auto dense = runtime::open(options);
  test::toy_engine engine(*dense, 7, 5e-5);
  engine.check_every(16);
  test::toy_sequence sequence;
  converse(*dense, engine, sequence);
  EXPECT_EQ(sequence.handle.errors().rows, 0u);

  const auto target = runtime::open(sampling_config(disk_64, "sketch:budget=0.02", 0));
  test::toy_engine other(*target, 8, 5e-5);
  other.check_every(16);
  test::toy_sequence exact;
  ASSERT_EQ(target->create_sequence({.max_tokens = 1200}, &exact.handle), status::ok);
  for (const std::uint32_t tokens : {64u, 300u, 5u, 400u, 1u, 100u, 1u, 1u}) {
    for (std::uint32_t done = 0, most = target->max_step_tokens(1, 1200); done < tokens;) {
      const std::uint32_t now = std::min(most, tokens - done);
      ASSERT_EQ(other.run({{.target = &exact, .tokens = now, .exact = true}}), status::ok);
      done += now;
    }
  }
  EXPECT_EQ(exact.handle.rows().offloaded, 0u) << "only what the selector is asked for is counted";
}

TEST(sampling, a_dense_layer_beside_sampled_ones_stays_exact) {
  config options = sampling_config(disk_64, "sketch:budget=0.05", 3);
  options.dense_layers = {2};
  const auto target = runtime::open(options);
  test::toy_engine engine(*target, 9, 0.0);
  engine.check_every(0);
  double worst = 0.0;
  engine.observe([&](const test::toy_engine::output& one) {
    if (one.layer == 2 && one.position >= 1024) {
      const auto truth = engine.reference(*one.target, one.layer, one.position, nullptr);
      for (std::size_t i = 0; i < truth.size(); ++i) {
        worst = std::max(worst, std::abs(truth[i] - static_cast<double>(one.o[i])));
      }
      EXPECT_EQ(one.reports[0].error_bound, 0.0f);
      EXPECT_EQ(one.reports[0].certified, 1u);
    }
  });
  test::toy_sequence sequence;
  converse(*target, engine, sequence);
  EXPECT_LT(worst, 5e-5);
  EXPECT_GT(sequence.handle.errors().rows, 0u);
}

TEST(sampling, several_sequences_and_forks_step_together) {
  config options = sampling_config(disk_64, "sketch:budget=1", 0);
  options.device_memory *= 2;
  const auto target = runtime::open(options);
  test::toy_engine engine(*target, 10, 5e-5);
  engine.check_every(16);
  test::toy_sequence parent, exact;
  converse(*target, engine, parent);
  ASSERT_EQ(target->create_sequence({.max_tokens = 300}, &exact.handle), status::ok);
  std::vector<test::toy_sequence> forks(3);
  for (test::toy_sequence& fork : forks) {
    ASSERT_EQ(target->fork(parent.handle, 960, {.max_tokens = 1100}, &fork.handle),
              status::rejected)
        << "the sliding layer has let go of its window";
    status forked = status::retry;
    for (int turn = 0; turn < 100 && forked == status::retry; ++turn) {
      target->wait_for_room(std::chrono::milliseconds(20));
      forked =
          target->fork(parent.handle, parent.tokens.size(), {.max_tokens = 1100}, &fork.handle);
    }
    ASSERT_EQ(forked, status::ok);
    fork.tokens = parent.tokens;
  }
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(engine.run({{.target = &forks[0], .tokens = 3},
                          {.target = &exact, .tokens = 40, .exact = true},
                          {.target = &forks[1], .tokens = 1},
                          {.target = &forks[2], .tokens = 2, .exact = true}}),
              status::ok);
  }
}

TEST(sampling, head_groups_choose_for_themselves) {
  config options = sampling_config(disk_64, "sketch:budget=1", 0);
  options.group_heads = 1;
  options.device_memory *= 2;
  const auto target = runtime::open(options);
  test::toy_engine engine(*target, 11, 5e-5);
  engine.check_every(16);
  test::toy_sequence sequence;
  converse(*target, engine, sequence);
  EXPECT_EQ(sequence.handle.rows().loaded, sequence.handle.rows().offloaded);
}

TEST(sampling, more_tokens_than_fit_are_refused_with_the_remedy) {
  test::log_lines log;
  config options = sampling_config(host_64, "sketch", 0);
  options.log = log.sink();
  const auto target = runtime::open(options);
  const std::uint32_t most = target->max_sampled_tokens(1);
  test::toy_engine engine(*target, 12, 1e9);
  engine.check_every(0);
  test::toy_sequence sequence;
  ASSERT_EQ(target->create_sequence({.max_tokens = 2000}, &sequence.handle), status::ok);
  EXPECT_EQ(engine.run({{.target = &sequence, .tokens = most + 1}}), status::rejected);
  EXPECT_TRUE(log.contains("max_sampled_tokens")) << log.all();
  EXPECT_EQ(sequence.handle.length(), 0u);
  EXPECT_EQ(target->max_sampled_tokens(0), 0u);
}

TEST(sampling, token_indexes_that_do_not_fit_are_refused_with_the_remedy) {
  config options =
      test::small_config({.device_extents = 12, .host_extents = 8, .disk_extents = 400}, 64, 0);
  options.selector = parse_selector("sketch");
  try {
    runtime::open(options);
    FAIL() << "opened";
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("host_memory"), std::string::npos) << text;
    EXPECT_NE(text.find("token indexes"), std::string::npos) << text;
    EXPECT_NE(text.find("bits=1"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace kvtier
