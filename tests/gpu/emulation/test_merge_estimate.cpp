// The CUDA merge that finishes an estimate, run by emulated CTAs.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "tests/gpu/emulation/emulated_attention.hpp"
#include "tests/gpu/estimate_case.hpp"

namespace kvtier::gpu::emulation {
namespace {

using test::estimate_case;

struct merge_results {
  std::vector<std::byte> merged;
  std::vector<float> lse;
  std::vector<row_report> report;
};

merge_args arguments_for(const estimate_case& what, element_type element, merge_results& results) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  results.merged.assign(what.out.size() * element_bytes(element), std::byte{0xff});
  results.lse.assign(what.rows, nan);
  results.report.assign(what.rows, {nan, nan, nan, 77});
  merge_args call;
  call.rows = what.rows;
  call.head_dim = what.head_dim;
  call.out = what.out.data();
  call.lse = what.lse.data();
  call.host_scale = what.scale.data();
  call.host_den = what.den.data();
  call.host_num = what.num.data();
  call.estimate = {what.scalars.data(), what.correction.data(), what.cross.data(), what.unbiased};
  call.merged_element = element;
  call.merged = results.merged.data();
  call.merged_lse = results.lse.data();
  call.report = results.report.data();
  return call;
}

TEST(emulated_merge_estimate, is_the_reference) {
  std::uint64_t seed = 170;
  for (const element_type type : {element_type::fp32, element_type::bf16, element_type::fp16}) {
    for (const std::uint32_t head_dim : {64u, 128u, 256u}) {
      for (const bool unbiased : {false, true}) {
        SCOPED_TRACE(std::string(to_string(type)) + ", head dim " + std::to_string(head_dim) +
                     (unbiased ? ", unbiased" : ""));
        const estimate_case what = test::draw_estimates(++seed, head_dim, unbiased);
        merge_results results;
        merge(arguments_for(what, type, results));
        ASSERT_NO_FATAL_FAILURE(
            test::expect_finished(what, type, results.merged, results.lse, results.report));
      }
    }
  }
}

TEST(emulated_merge_estimate, gives_the_golden_results) {
  for (const auto& set : lsh::golden::vectors().sets) {
    for (const auto& right : set.cases) {
      SCOPED_TRACE("D " + std::to_string(set.D) + ", " + right.name + ", " + right.mode + ", " +
                   std::to_string(right.bits) + " bits");
      const estimate_case what = test::golden_estimates(set, right);
      merge_results results;
      merge(arguments_for(what, element_type::fp32, results));
      std::vector<float> merged(what.out.size());
      to_float(element_type::fp32, results.merged.data(), merged.data(), merged.size());
      ASSERT_NO_FATAL_FAILURE(test::expect_golden(right, merged, results.lse, results.report));
    }
  }
}

TEST(emulated_merge_estimate, reports_exact_and_unknown_rows) {
  const estimate_case what = test::draw_estimates(8, 64, false);
  for (const bool unknown : {false, true}) {
    merge_results results;
    merge_args call = arguments_for(what, element_type::fp32, results);
    call.estimate = {};
    call.unknown = unknown;
    merge(call);
    for (const row_report& report : results.report) {
      EXPECT_EQ(std::isnan(report.error_bound), unknown);
      EXPECT_TRUE(unknown || report.error_bound == 0.0f);
      EXPECT_EQ(report.shrink, 0.0f);
      EXPECT_EQ(report.terms, 0.0f);
      EXPECT_EQ(report.certified, unknown ? 0u : 1u);
    }
  }
}

TEST(emulated_merge_estimate, needs_host_sums_and_both_vectors) {
  const estimate_case what = test::draw_estimates(9, 64, false);
  merge_results results;
  const merge_args valid = arguments_for(what, element_type::fp32, results);
  merge_args call = valid;
  call.host_scale = nullptr;
  EXPECT_THROW(merge(call), std::invalid_argument);
  call = valid;
  call.estimate.correction = nullptr;
  EXPECT_THROW(merge(call), std::invalid_argument);
  call = valid;
  call.estimate.cross = nullptr;
  EXPECT_THROW(merge(call), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::gpu::emulation
