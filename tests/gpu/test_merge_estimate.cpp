// The merge that finishes an estimate, on every device.
#include <cmath>
#include <limits>

#include "tests/gpu/device_test.hpp"
#include "tests/gpu/estimate_case.hpp"

namespace kvtier::test {
namespace {

/// A case in device memory.
class placed_estimates {
 public:
  placed_estimates(gpu::device& device, gpu::stream& order, const estimate_case& what,
                   element_type element)
      : out_(device, order, what.out),
        lse_(device, order, what.lse),
        scale_(device, order, what.scale),
        den_(device, order, what.den),
        num_(device, order, what.num),
        correction_(device, order, what.correction),
        cross_(device, order, what.cross),
        scalars_(device, order, what.scalars),
        merged_(device, order, what.out.size() * element_bytes(element)),
        merged_lse_(device, order, what.rows),
        report_(device, order, what.rows) {
    call.rows = what.rows;
    call.head_dim = what.head_dim;
    call.out = out_.data();
    call.lse = lse_.data();
    call.host_scale = scale_.data();
    call.host_den = den_.data();
    call.host_num = num_.data();
    call.estimate = {scalars_.data(), correction_.data(), cross_.data(), what.unbiased};
    call.merged_element = element;
    call.merged = merged_.data();
    call.merged_lse = merged_lse_.data();
    call.report = report_.data();
  }

  gpu::merge_args call;

  std::vector<std::byte> merged() const { return merged_.download(); }
  std::vector<float> merged_lse() const { return merged_lse_.download(); }
  std::vector<gpu::row_report> report() const { return report_.download(); }

 private:
  device_array<float> out_, lse_, scale_, den_, num_, correction_, cross_;
  device_array<gpu::estimate_scalars> scalars_;
  device_array<std::byte> merged_;
  device_array<float> merged_lse_;
  device_array<gpu::row_report> report_;
};

TEST_P(device_test, finishes_estimates) {
  const auto device = open();
  const auto stream = device->make_stream("compute");
  std::uint64_t seed = 70;
  for (const element_type type : {element_type::fp32, element_type::bf16, element_type::fp16}) {
    for (const std::uint32_t head_dim : {64u, 128u, 256u}) {
      for (const bool unbiased : {false, true}) {
        SCOPED_TRACE(std::string(to_string(type)) + ", head dim " + std::to_string(head_dim) +
                     (unbiased ? ", unbiased" : ""));
        const estimate_case what = draw_estimates(++seed, head_dim, unbiased);
        const placed_estimates placed(*device, *stream, what, type);
        device->merge(placed.call, *stream);
        ASSERT_NO_FATAL_FAILURE(
            expect_finished(what, type, placed.merged(), placed.merged_lse(), placed.report()));
      }
    }
  }
}

TEST_P(device_test, finishes_estimates_without_lse_and_report) {
  const auto device = open();
  const auto stream = device->make_stream("compute");
  const estimate_case what = draw_estimates(7, 64, false);
  const placed_estimates with(*device, *stream, what, element_type::fp32);
  device->merge(with.call, *stream);
  placed_estimates without(*device, *stream, what, element_type::fp32);
  without.call.merged_lse = nullptr;
  without.call.report = nullptr;
  device->merge(without.call, *stream);
  EXPECT_EQ(with.merged(), without.merged());
}

TEST_P(device_test, finishes_the_golden_estimates) {
  const auto device = open();
  const auto stream = device->make_stream("compute");
  for (const auto& set : lsh::golden::vectors().sets) {
    for (const auto& right : set.cases) {
      SCOPED_TRACE("D " + std::to_string(set.D) + ", " + right.name + ", " + right.mode + ", " +
                   std::to_string(right.bits) + " bits");
      const estimate_case what = golden_estimates(set, right);
      const placed_estimates placed(*device, *stream, what, element_type::fp32);
      device->merge(placed.call, *stream);
      const std::vector<std::byte> bytes = placed.merged();
      std::vector<float> merged(what.out.size());
      to_float(element_type::fp32, bytes.data(), merged.data(), merged.size());
      ASSERT_NO_FATAL_FAILURE(expect_golden(right, merged, placed.merged_lse(), placed.report()));
    }
  }
}

TEST_P(device_test, reports_of_exact_and_of_unknown_rows) {
  const auto device = open();
  const auto stream = device->make_stream("compute");
  const estimate_case what = draw_estimates(8, 64, false);
  for (const bool with_host : {true, false}) {
    for (const bool unknown : {false, true}) {
      placed_estimates placed(*device, *stream, what, element_type::fp32);
      placed.call.estimate = {};
      placed.call.unknown = unknown;
      if (!with_host) {
        placed.call.host_scale = nullptr;
      }
      device->merge(placed.call, *stream);
      for (const gpu::row_report& report : placed.report()) {
        EXPECT_EQ(std::isnan(report.error_bound), unknown);
        EXPECT_TRUE(unknown || report.error_bound == 0.0f);
        EXPECT_EQ(report.shrink, 0.0f);
        EXPECT_EQ(report.terms, 0.0f);
        EXPECT_EQ(report.certified, unknown ? 0u : 1u);
      }
    }
  }
}

TEST_P(device_test, unknown_rows_stay_unknown_with_an_estimate) {
  const auto device = open();
  const auto stream = device->make_stream("compute");
  placed_estimates placed(*device, *stream, draw_estimates(9, 64, false), element_type::fp32);
  placed.call.unknown = true;
  device->merge(placed.call, *stream);
  for (const gpu::row_report& report : placed.report()) {
    EXPECT_TRUE(std::isnan(report.error_bound));
    EXPECT_EQ(report.certified, 0u);
  }
}

/// Expects a refusal that names `word`.
void expect_merge_refused(gpu::device& device, gpu::stream& order, const gpu::merge_args& call,
                          const std::string& word) {
  try {
    device.merge(call, order);
    ADD_FAILURE() << "accepted; expected an error about '" << word << "'";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST_P(device_test, refuses_estimates_that_lack_something) {
  const auto device = open();
  const auto stream = device->make_stream("compute");
  const placed_estimates placed(*device, *stream, draw_estimates(10, 64, false),
                                element_type::fp32);
  const auto refused = [&](const std::string& word, auto spoil) {
    gpu::merge_args call = placed.call;
    spoil(call);
    expect_merge_refused(*device, *stream, call, word);
  };
  refused("host_scale", [](gpu::merge_args& call) { call.host_scale = nullptr; });
  refused("host_num", [](gpu::merge_args& call) { call.host_num = nullptr; });
  refused("estimate.correction", [](gpu::merge_args& call) { call.estimate.correction = nullptr; });
  refused("estimate.cross", [](gpu::merge_args& call) { call.estimate.cross = nullptr; });
  device->merge(placed.call, *stream);
  stream->synchronize();
}

}  // namespace
}  // namespace kvtier::test
