// Resident attention against float64: element types, head dims, groups, blocks, ranges, masks.
#include <cmath>
#include <limits>

#include "tests/gpu/attention_case.hpp"

namespace kvtier::test {
namespace {

constexpr float untouched = -77.0f;

struct partial {
  std::vector<float> out;
  std::vector<float> lse;
};

/// A case in the memory of a device.
class placed_case {
 public:
  placed_case(gpu::device& device, const attention_case& what)
      : device_(device),
        stream_(device.make_stream("compute")),
        pool_(device, *stream_, what.pool, gpu::memory_use::kv),
        q_(device, *stream_, what.q),
        out_(device, *stream_, std::vector<float>(rows(what) * what.shape.head_dim, untouched)),
        lse_(device, *stream_, std::vector<float>(rows(what), untouched)) {}

  gpu::attend_args args(const attention_case& what) {
    return what.args(pool_.data(), q_.data(), out_.data(), lse_.data(), placed_);
  }
  void attend(const gpu::attend_args& args) { device_.attend(args, *stream_); }
  partial result() const { return {out_.download(), lse_.download()}; }
  void preset(float out, float lse) {
    out_.upload(std::vector<float>(out_.size(), out));
    lse_.upload(std::vector<float>(lse_.size(), lse));
  }

 private:
  static std::size_t rows(const attention_case& what) { return what.query_tokens * what.heads(); }

  gpu::device& device_;
  std::unique_ptr<gpu::stream> stream_;
  device_array<std::byte> pool_;
  device_array<std::byte> q_;
  device_array<float> out_;
  device_array<float> lse_;
  std::vector<gpu::kv_range> placed_;
};

void expect_right(gpu::device& device, const attention_case_options& options) {
  SCOPED_TRACE("seed " + std::to_string(options.seed) + ", " +
               std::string(to_string(options.element)) + ", head dim " +
               std::to_string(options.head_dim) + ", group " + std::to_string(options.group) +
               ", blocks of " + std::to_string(options.block_tokens));
  const attention_case what(options);
  placed_case placed(device, what);
  placed.attend(placed.args(what));
  const partial got = placed.result();
  what.expect_attended(got.out, got.lse, untouched);
}

TEST_P(device_test, attends_every_element_type_and_head_dim) {
  const auto device = open();
  std::uint64_t seed = 100;
  for (const element_type element : {element_type::bf16, element_type::fp16, element_type::fp32}) {
    for (const std::uint32_t head_dim : {64u, 128u, 256u}) {
      attention_case_options options;
      options.seed = ++seed;
      options.element = element;
      options.head_dim = head_dim;
      options.tokens = {1, 3};
      ASSERT_NO_FATAL_FAILURE(expect_right(*device, options));
    }
  }
}

TEST_P(device_test, attends_every_group_and_block_size) {
  const auto device = open();
  std::uint64_t seed = 200;
  for (std::uint32_t group = 1; group <= 8; ++group) {
    attention_case_options options;
    options.seed = ++seed;
    options.group = group;
    options.head_dim = group % 2 == 0 ? 64 : 128;
    options.element = group % 3 == 0 ? element_type::fp16 : element_type::bf16;
    options.block_tokens = group % 3 == 0 ? 256 : group % 3 == 1 ? 16 : 64;
    options.tokens = {1, 1, 2};
    ASSERT_NO_FATAL_FAILURE(expect_right(*device, options));
  }
}

TEST_P(device_test, attends_several_sequences_of_one_token) {
  const auto device = open();
  for (std::uint64_t seed = 300; seed < 304; ++seed) {
    attention_case_options options;
    options.seed = seed;
    options.tokens = std::vector<std::uint32_t>(1 + seed % 7, 1);
    options.context = seed % 2 == 0 ? 40 : 1500;
    ASSERT_NO_FATAL_FAILURE(expect_right(*device, options));
  }
}

TEST_P(device_test, many_tokens_see_their_past_only) {
  const auto device = open();
  std::uint64_t seed = 400;
  for (const std::uint32_t tokens : {2u, 17u, 64u, 65u, 130u}) {
    attention_case_options options;
    options.seed = ++seed;
    options.tokens = {tokens, 1};
    options.head_dim = tokens % 2 == 0 ? 64 : 128;
    options.group = 1 + tokens % 8;
    options.context = 200;
    ASSERT_NO_FATAL_FAILURE(expect_right(*device, options));
  }
}

TEST_P(device_test, windows_hide_what_is_too_old) {
  const auto device = open();
  std::uint64_t seed = 500;
  for (const std::uint32_t window : {1u, 5u, 64u, 100u, 1000u}) {
    attention_case_options options;
    options.seed = ++seed;
    options.window = window;
    options.tokens = {1, 30, 90};
    options.block_tokens = window == 5 ? 16 : 64;
    options.head_dim = 64;
    ASSERT_NO_FATAL_FAILURE(expect_right(*device, options));
  }
}

TEST_P(device_test, accumulating_calls_equal_one_call) {
  const auto device = open();
  for (std::uint64_t seed = 600; seed < 603; ++seed) {
    attention_case_options options;
    options.seed = seed;
    options.tokens = {1, 40, 1};
    options.block_tokens = 16;
    options.head_dim = 64;
    options.window = seed == 602 ? 50 : 0;
    const attention_case what(options);
    placed_case placed(*device, what);
    const gpu::attend_args whole = placed.args(what);
    // The calls take every third range of each work item.
    for (std::uint32_t part = 0; part < 3; ++part) {
      std::vector<gpu::kv_range> ranges;
      std::vector<gpu::attend_work> works(what.works);
      for (gpu::attend_work& work : works) {
        const auto first = static_cast<std::uint32_t>(ranges.size());
        for (std::uint32_t i = part; i < work.range_count; i += 3) {
          ranges.push_back(whole.ranges[work.first_range + i]);
        }
        work.first_range = first;
        work.range_count = static_cast<std::uint32_t>(ranges.size()) - first;
      }
      gpu::attend_args call = whole;
      call.ranges = ranges;
      call.works = works;
      call.accumulate = part > 0;
      placed.attend(call);
    }
    const partial got = placed.result();
    SCOPED_TRACE("seed " + std::to_string(seed));
    ASSERT_NO_FATAL_FAILURE(what.expect_attended(got.out, got.lse, untouched));
  }
}

// An empty partial may hold any values: only its lse counts.
TEST_P(device_test, accumulating_onto_nothing_ignores_garbage) {
  const auto device = open();
  attention_case_options options;
  options.seed = 700;
  options.tokens = {1, 9};
  attention_case what(options);
  placed_case placed(*device, what);
  placed.preset(std::numeric_limits<float>::quiet_NaN(), minus_infinity);
  gpu::attend_args call = placed.args(what);
  call.accumulate = true;
  placed.attend(call);
  const partial got = placed.result();
  for (const gpu::attend_work& work : what.works) {
    const std::size_t row =
        work.first_token * what.heads() + std::size_t{what.slice.kv_head_first} * what.shape.group;
    EXPECT_FALSE(std::isnan(got.out[row * what.shape.head_dim]));
    EXPECT_FALSE(std::isnan(got.lse[row]));
  }
}

TEST_P(device_test, seeing_nothing_gives_zero_and_minus_infinity) {
  const auto device = open();
  attention_case_options options;
  options.seed = 800;
  options.tokens = {1, 5, 70};
  const attention_case what(options);
  placed_case placed(*device, what);
  gpu::attend_args call = placed.args(what);
  std::vector<gpu::attend_work> works(what.works);
  for (gpu::attend_work& work : works) {
    work.range_count = 0;
  }
  call.works = works;
  placed.attend(call);
  const partial got = placed.result();
  for (const gpu::attend_work& work : works) {
    for (std::uint32_t t = 0; t < work.tokens; ++t) {
      const std::size_t row = (work.first_token + t) * what.heads() +
                              std::size_t{what.slice.kv_head_first} * what.shape.group;
      EXPECT_EQ(got.lse[row], minus_infinity);
      EXPECT_EQ(got.out[row * what.shape.head_dim], 0.0f);
    }
  }
}

// With one row the weight is exactly 1, whatever the logit.
TEST_P(device_test, one_row_gives_its_value_exactly) {
  const auto device = open();
  attention_case_options options;
  options.seed = 900;
  options.context = 0;
  options.whole = true;
  const attention_case what(options);
  placed_case placed(*device, what);
  gpu::attend_args call = placed.args(what);
  call.scale = 1000.0f;
  placed.attend(call);
  const partial got = placed.result();
  const std::size_t row = what.works[0].first_token * what.heads() +
                          std::size_t{what.slice.kv_head_first} * what.shape.group;
  const std::size_t block = reinterpret_cast<std::size_t>(what.ranges[0].block);
  std::vector<float> value(what.shape.head_dim);
  to_float(what.shape.element, what.pool.data() + block + what.shape.row_bytes() / 2, value.data(),
           value.size());
  for (std::uint32_t d = 0; d < what.shape.head_dim; ++d) {
    EXPECT_EQ(got.out[row * what.shape.head_dim + d], value[d]) << "d = " << d;
  }
}

TEST_P(device_test, the_same_call_gives_the_same_bits) {
  const auto device = open();
  attention_case_options options;
  options.seed = 1000;
  options.context = 4000;
  options.tokens = {1, 20};
  const attention_case what(options);
  placed_case placed(*device, what);
  placed.attend(placed.args(what));
  const partial first = placed.result();
  placed.attend(placed.args(what));
  const partial second = placed.result();
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.lse, second.lse);
}

}  // namespace
}  // namespace kvtier::test
