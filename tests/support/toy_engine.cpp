#include "tests/support/toy_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvtier::test {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Marks tokens whose K and V are not numbers.
constexpr std::uint64_t poisoned = std::uint64_t{1} << 63;

}  // namespace

toy_engine::toy_engine(runtime& target, std::uint64_t seed, double tolerance)
    : runtime_(target),
      seed_(seed),
      tolerance_(tolerance),
      stream_(target.device().make_stream("engine")) {}

void toy_engine::fill(char kind, std::uint64_t token, std::uint64_t position, std::uint32_t layer,
                      std::size_t count, float* out) const {
  if (kind != 'q' && (token & poisoned) != 0) {
    std::fill_n(out, count, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  std::uint64_t state = mix(seed_ ^ static_cast<std::uint64_t>(kind));
  state = mix(state ^ token);
  state = mix(state ^ (position << 8) ^ layer);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = mix(state + i);
    // The sum of four 16-bit uniforms: near enough to a normal of deviation 1.
    const double sum = static_cast<double>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                           (bits >> 32 & 0xffff) + (bits >> 48));
    const double value = (sum / 65536.0 - 2.0) * std::sqrt(3.0);
    // Rounded to the KV element, so that reference and runtime see the same numbers.
    std::uint32_t raw = 0;
    const auto single = static_cast<float>(value);
    from_float(runtime_.shape().element, &single, &raw, 1);
    to_float(runtime_.shape().element, &raw, out + i, 1);
  }
}

status toy_engine::run(const std::vector<request>& requests) {
  const kv_shape& shape = runtime_.shape();
  std::vector<step_request> wanted;
  std::uint32_t total = 0;
  for (const request& what : requests) {
    wanted.push_back({.target = &what.target->handle, .tokens = what.tokens, .exact = what.exact});
    total += what.tokens;
  }
  step current;
  for (status outcome = runtime_.begin_step(wanted, &current); outcome != status::ok;
       outcome = runtime_.begin_step(wanted, &current)) {
    if (outcome != status::retry || ++retries_ > 100000) {
      return outcome;
    }
    runtime_.wait_for_room(std::chrono::milliseconds(50));
  }
  for (const request& what : requests) {
    for (std::uint32_t i = 0; i < what.tokens; ++i) {
      what.target->tokens.push_back(next_token_++ | (poison_ ? poisoned : 0));
    }
  }
  const std::size_t q_row = std::size_t{shape.query_heads} * shape.head_dim;
  const std::size_t kv_row = std::size_t{shape.kv_heads} * shape.head_dim;
  const std::size_t element = element_bytes(shape.element);
  gpu::device& device = runtime_.device();
  const auto buffer = [&](std::size_t bytes) {
    return device.allocate(bytes, gpu::memory_use::activation, *stream_);
  };
  const gpu::device_buffer q = buffer(total * q_row * element),
                           k = buffer(total * kv_row * element),
                           v = buffer(total * kv_row * element),
                           o = buffer(total * q_row * sizeof(float)),
                           lse = buffer(total * shape.query_heads * sizeof(float)),
                           report = buffer(total * shape.query_heads * sizeof(gpu::row_report));
  std::vector<gpu::row_report> reports(total * shape.query_heads);
  std::vector<float> values(q_row), outputs(total * q_row), lses(total * shape.query_heads);
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (const auto& [kind, target, row] :
         {std::tuple{'q', &q, q_row}, std::tuple{'k', &k, kv_row}, std::tuple{'v', &v, kv_row}}) {
      std::vector<std::byte> host(total * row * element);
      std::size_t at = 0;
      for (const request& what : requests) {
        const auto& tokens = what.target->tokens;
        for (std::size_t i = tokens.size() - what.tokens; i < tokens.size(); ++i) {
          fill(kind, tokens[i], i, layer, row, values.data());
          from_float(shape.element, values.data(), host.data() + at * row * element, row);
          ++at;
        }
      }
      device.copy(target->data(), host.data(), host.size(), gpu::copy_kind::host_to_device,
                  *stream_);
      stream_->synchronize();
    }
    const status outcome = current.attend(layer,
                                          {.q = q.data(),
                                           .k = k.data(),
                                           .v = v.data(),
                                           .o = o.data(),
                                           .o_element = element_type::fp32,
                                           .lse = lse.as<float>(),
                                           .report = report.as<gpu::row_report>()},
                                          *stream_);
    if (outcome != status::ok) {
      return outcome;
    }
    device.copy(outputs.data(), o.data(), o.size(), gpu::copy_kind::device_to_host, *stream_);
    device.copy(lses.data(), lse.data(), lse.size(), gpu::copy_kind::device_to_host, *stream_);
    device.copy(reports.data(), report.data(), report.size(), gpu::copy_kind::device_to_host,
                *stream_);
    stream_->synchronize();
    std::uint32_t row = 0;
    for (const request& what : requests) {
      for (std::uint32_t i = 0; i < what.tokens; ++i, ++row) {
        const std::uint64_t position = what.target->tokens.size() - what.tokens + i;
        const float* mine = outputs.data() + row * q_row;
        if (observer_) {
          observer_({.target = what.target,
                     .position = position,
                     .layer = layer,
                     .o = mine,
                     .reports = reports.data() + row * shape.query_heads});
        }
        if (!poison_ && check_every_ > 0 &&
            ((i + layer) % check_every_ == 0 || i + 1 == what.tokens)) {
          check(*what.target, layer, position, mine,
                static_cast<double>(lses[row * shape.query_heads]));
        }
      }
    }
  }
  return current.end();
}

std::vector<double> toy_engine::reference(const toy_sequence& target, std::uint32_t layer,
                                          std::uint64_t position, double* lse) const {
  const kv_shape& shape = runtime_.shape();
  const auto& tokens = target.tokens;
  const std::uint32_t window = shape.kind(layer).window;
  const std::size_t first = window == 0 || position < window ? 0 : position - window + 1;
  const std::size_t dim = shape.head_dim;
  std::vector<float> q(shape.query_heads * dim), k(shape.kv_heads * dim), v(shape.kv_heads * dim);
  fill('q', tokens[position], position, layer, q.size(), q.data());
  std::vector<double> top(shape.query_heads, -1e300), den(shape.query_heads),
      num(shape.query_heads * dim);
  for (std::size_t i = first; i <= position; ++i) {
    fill('k', tokens[i], i, layer, k.size(), k.data());
    fill('v', tokens[i], i, layer, v.size(), v.data());
    for (std::size_t head = 0; head < shape.query_heads; ++head) {
      const std::size_t kv = head / shape.group() * dim;
      double logit = 0;
      for (std::size_t d = 0; d < dim; ++d) {
        logit += static_cast<double>(q[head * dim + d]) * static_cast<double>(k[kv + d]);
      }
      logit /= std::sqrt(static_cast<double>(dim));
      if (logit > top[head]) {
        const double factor = std::exp(top[head] - logit);
        top[head] = logit;
        den[head] *= factor;
        for (std::size_t d = 0; d < dim; ++d) {
          num[head * dim + d] *= factor;
        }
      }
      const double weight = std::exp(logit - top[head]);
      den[head] += weight;
      for (std::size_t d = 0; d < dim; ++d) {
        num[head * dim + d] += weight * static_cast<double>(v[kv + d]);
      }
    }
  }
  for (std::size_t i = 0; i < num.size(); ++i) {
    num[i] /= den[i / dim];
  }
  if (lse != nullptr) {
    *lse = top[0] + std::log(den[0]);
  }
  return num;
}

void toy_engine::check(const toy_sequence& target, std::uint32_t layer, std::uint64_t position,
                       const float* o, double lse) const {
  double true_lse = 0.0;
  const std::vector<double> truth = reference(target, layer, position, &true_lse);
  double worst = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double difference = std::abs(truth[i] - static_cast<double>(o[i]));
    worst = difference <= worst ? worst : difference;  // a NaN is the worst of all
  }
  EXPECT_TRUE(worst <= tolerance_) << "sequence " << target.handle.id() << " layer " << layer
                                   << " position " << position << ": |o - reference| = " << worst;
  EXPECT_NEAR(lse, true_lse, tolerance_)
      << "sequence " << target.handle.id() << " layer " << layer << " position " << position;
}

}  // namespace kvtier::test
