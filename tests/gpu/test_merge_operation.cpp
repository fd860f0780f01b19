// What the host device's merge looks like to those who do not wait: poison between start and
// finish, inputs of the first rows read at the start, of the others at the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "gpu/host_device/merge_operation.hpp"
#include "tests/gpu/estimate_case.hpp"

namespace kvtier::test {
namespace {

class merge_operation_test : public testing::Test {
 protected:
  merge_operation_test() {
    gpu::host_device_options options;
    options.threads = 1;
    options.poison = true;
    options.max_delay_us = 1;
    context_ = std::make_unique<gpu::device_context>(1 << 20, 1 << 20, gpu::op_observer{}, options);
  }

  struct results {
    std::vector<float> merged, lse;
    std::vector<gpu::row_report> report;

    explicit results(const estimate_case& what)
        : merged(what.out.size()), lse(what.rows), report(what.rows) {}
    std::vector<std::byte> bytes() const {
      std::vector<std::byte> all(merged.size() * sizeof(float));
      std::memcpy(all.data(), merged.data(), all.size());
      return all;
    }
  };

  static gpu::merge_args arguments_for(const estimate_case& what, results& into) {
    gpu::merge_args call;
    call.rows = what.rows;
    call.head_dim = what.head_dim;
    call.out = what.out.data();
    call.lse = what.lse.data();
    call.host_scale = what.scale.data();
    call.host_den = what.den.data();
    call.host_num = what.num.data();
    call.estimate = {what.scalars.data(), what.correction.data(), what.cross.data(), false};
    call.merged_element = element_type::fp32;
    call.merged = into.merged.data();
    call.merged_lse = into.lse.data();
    call.report = into.report.data();
    return call;
  }

  std::unique_ptr<gpu::device_context> context_;
};

template <class T> void expect_poison(const std::vector<T>& values) {
  for (const T& value : values) {
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    ASSERT_TRUE(std::all_of(bytes, bytes + sizeof(T), [](unsigned char b) { return b == 0xff; }));
  }
}

TEST_F(merge_operation_test, its_results_are_poison_until_it_ends) {
  const estimate_case what = draw_estimates(1, 64, false);
  results got(what);
  const auto operation = gpu::make_merge(*context_, arguments_for(what, got));
  operation->start();
  expect_poison(got.merged);
  expect_poison(got.lse);
  expect_poison(got.report);
  operation->finish();
  expect_finished(what, element_type::fp32, got.bytes(), got.lse, got.report);
}

/// `first` in the rows that are read when the merge starts, `second` in the others.
template <class T>
std::vector<T> halves(const std::vector<T>& first, const std::vector<T>& second, std::size_t rows) {
  const std::size_t width = first.size() / rows;
  std::vector<T> mixed = second;
  std::copy_n(first.begin(), (rows + 1) / 2 * width, mixed.begin());
  return mixed;
}

TEST_F(merge_operation_test, reads_half_of_every_input_at_the_start) {
  const estimate_case first = draw_estimates(2, 64, false);
  const estimate_case second = draw_estimates(3, 64, false);
  estimate_case changing = first;
  results got(changing);
  const auto operation = gpu::make_merge(*context_, arguments_for(changing, got));
  operation->start();
  const auto overwrite = [](auto& to, const auto& from) {
    std::copy(from.begin(), from.end(), to.begin());
  };
  overwrite(changing.out, second.out);
  overwrite(changing.lse, second.lse);
  overwrite(changing.scale, second.scale);
  overwrite(changing.den, second.den);
  overwrite(changing.num, second.num);
  overwrite(changing.scalars, second.scalars);
  overwrite(changing.correction, second.correction);
  overwrite(changing.cross, second.cross);
  operation->finish();

  estimate_case seen = second;
  seen.out = halves(first.out, second.out, first.rows);
  seen.lse = halves(first.lse, second.lse, first.rows);
  seen.scale = halves(first.scale, second.scale, first.rows);
  seen.num = halves(first.num, second.num, first.rows);
  seen.scalars = halves(first.scalars, second.scalars, first.rows);
  seen.correction = halves(first.correction, second.correction, first.rows);
  seen.cross = halves(first.cross, second.cross, first.rows);
  expect_finished(seen, element_type::fp32, got.bytes(), got.lse, got.report);
}

}  // namespace
}  // namespace kvtier::test
