// The merge with host sums against its formula in float64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tests/gpu/attention_case.hpp"

namespace kvtier::test {
namespace {

constexpr float unread = std::numeric_limits<float>::quiet_NaN();

struct merge_case {
  std::uint32_t rows = 0;
  std::uint32_t head_dim = 0;
  std::vector<float> out, lse, scale, den, num;
};

/// Rows of all kinds: both sides, one of them empty (with NaN in its vector), both empty, far
/// apart, and host sums whose denominator is negative.
merge_case draw(std::uint64_t seed, std::uint32_t rows, std::uint32_t head_dim) {
  merge_case made{rows, head_dim, {}, {}, {}, {}, {}};
  made.out = normal_values(std::size_t{rows} * head_dim, seed + 1);
  made.num = normal_values(std::size_t{rows} * head_dim, seed + 2);
  made.lse = normal_values(rows, seed + 3, 3.0f);
  made.scale = normal_values(rows, seed + 4, 3.0f);
  made.den = normal_values(rows, seed + 5);
  const auto fill = [&made](std::vector<float>& values, std::size_t row) {
    std::fill_n(&values[row * made.head_dim], made.head_dim, unread);
  };
  for (std::uint32_t row = 0; row < rows; ++row) {
    made.den[row] = 0.1f + std::fabs(made.den[row]);
    const std::uint32_t kind = row % 7;
    if (kind == 1 || kind == 3) {
      made.lse[row] = minus_infinity;
      fill(made.out, row);
    }
    if (kind == 2 || kind == 3) {
      made.scale[row] = minus_infinity;
      made.den[row] = unread;
      fill(made.num, row);
    }
    if (kind == 4) {
      made.lse[row] += row % 2 == 0 ? 500.0f : -500.0f;
    }
    if (kind == 5) {
      made.scale[row] = made.lse[row] - 1.0f;
      made.den[row] = -0.8f;
    }
  }
  return made;
}

struct merged_row {
  std::vector<double> values;
  std::vector<double> magnitude;
  double lse = minus_infinity;
};

merged_row expected(const merge_case& what, std::uint32_t row, bool with_host) {
  merged_row made{std::vector<double>(what.head_dim), std::vector<double>(what.head_dim), {}};
  const double lse = what.lse[row];
  const double scale = with_host ? what.scale[row] : minus_infinity;
  const double top = std::max(lse, scale);
  if (std::isinf(top)) {
    made.lse = minus_infinity;
    return made;
  }
  const bool device = !std::isinf(lse);
  const bool host = !std::isinf(scale);
  const double total = (device ? std::exp(lse - top) : 0.0) +
                       (host ? std::exp(scale - top) * double{what.den[row]} : 0.0);
  for (std::uint32_t d = 0; d < what.head_dim; ++d) {
    const std::size_t at = std::size_t{row} * what.head_dim + d;
    const double a = device ? std::exp(lse - top) * double{what.out[at]} / total : 0.0;
    const double b = host ? std::exp(scale - top) * double{what.num[at]} / total : 0.0;
    made.values[d] = a + b;
    made.magnitude[d] = std::fabs(a) + std::fabs(b);
  }
  made.lse = top + std::log(total);
  return made;
}

double rounding(element_type type) {
  return type == element_type::fp32 ? 0.0 : type == element_type::fp16 ? 1.0 / 2048 : 1.0 / 256;
}

void expect_merged(const merge_case& what, element_type type, bool with_host,
                   const std::vector<std::byte>& merged, const std::vector<float>& lse) {
  std::vector<float> values(std::size_t{what.rows} * what.head_dim);
  to_float(type, merged.data(), values.data(), values.size());
  for (std::uint32_t row = 0; row < what.rows; ++row) {
    SCOPED_TRACE("row " + std::to_string(row) + ", kind " + std::to_string(row % 7));
    const merged_row right = expected(what, row, with_host);
    if (std::isinf(right.lse)) {
      ASSERT_EQ(lse[row], minus_infinity);
    } else {
      ASSERT_NEAR(lse[row], right.lse, 1e-5 * (1.0 + std::fabs(right.lse)));
    }
    for (std::uint32_t d = 0; d < what.head_dim; ++d) {
      const double tolerance =
          1e-5 * right.magnitude[d] + rounding(type) * std::fabs(right.values[d]) + 1e-7;
      ASSERT_NEAR(values[std::size_t{row} * what.head_dim + d], right.values[d], tolerance)
          << "d = " << d;
    }
  }
}

void expect_right(gpu::device& device, const merge_case& what, element_type type, bool with_host) {
  const auto stream = device.make_stream("compute");
  const std::size_t values = std::size_t{what.rows} * what.head_dim;
  const device_array<float> out(device, *stream, what.out);
  const device_array<float> lse(device, *stream, what.lse);
  const device_array<float> scale(device, *stream, what.scale);
  const device_array<float> den(device, *stream, what.den);
  const device_array<float> num(device, *stream, what.num);
  const device_array<std::byte> merged(device, *stream, values * element_bytes(type));
  const device_array<float> merged_lse(device, *stream, what.rows);
  gpu::merge_args call;
  call.rows = what.rows;
  call.head_dim = what.head_dim;
  call.out = out.data();
  call.lse = lse.data();
  if (with_host) {
    call.host_scale = scale.data();
    call.host_den = den.data();
    call.host_num = num.data();
  }
  call.merged_element = type;
  call.merged = merged.data();
  call.merged_lse = merged_lse.data();
  device.merge(call, *stream);
  expect_merged(what, type, with_host, merged.download(), merged_lse.download());
  call.merged_lse = nullptr;
  device.merge(call, *stream);
  expect_merged(what, type, with_host, merged.download(), merged_lse.download());
}

TEST_P(device_test, merges_with_host_sums) {
  const auto device = open();
  std::uint64_t seed = 20;
  for (const element_type type : {element_type::fp32, element_type::bf16, element_type::fp16}) {
    for (const std::uint32_t head_dim : {64u, 128u, 256u}) {
      ++seed;
      SCOPED_TRACE(std::string(to_string(type)) + ", head dim " + std::to_string(head_dim));
      ASSERT_NO_FATAL_FAILURE(expect_right(*device, draw(seed, 71, head_dim), type, true));
    }
  }
}

TEST_P(device_test, merges_without_host_sums) {
  const auto device = open();
  for (const element_type type : {element_type::fp32, element_type::bf16, element_type::fp16}) {
    ASSERT_NO_FATAL_FAILURE(expect_right(*device, draw(31, 14, 128), type, false));
  }
}

TEST_P(device_test, merging_no_rows_is_allowed) {
  const auto device = open();
  const auto stream = device->make_stream("compute");
  device->merge(gpu::merge_args{}, *stream);
  stream->synchronize();
}

}  // namespace
}  // namespace kvtier::test
