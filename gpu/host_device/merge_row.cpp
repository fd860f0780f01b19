#include "gpu/host_device/merge_row.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/finish_estimate.hpp"

namespace kvtier::gpu {
namespace {

constexpr float nothing = -std::numeric_limits<float>::infinity();

/// Shares of the device's and the host's vector in one row, and its log-sum of exponentials.
struct row_weights {
  double device = 0.0;
  double host = 0.0;
  double lse = nothing;
};

/// `den` is the host's denominator in units of exp(scale).
row_weights weigh(float lse, float scale, double den) {
  const double top = std::max(lse, scale);
  if (top == nothing) {
    return {};
  }
  const double device = lse == nothing ? 0.0 : std::exp(lse - top);
  const double host = scale == nothing ? 0.0 : std::exp(scale - top);
  const double total = device + (host != 0.0 ? host * den : 0.0);
  if (total == 0.0) {
    return {};
  }
  // A side that is not there must not be touched even where the other is a NaN.
  const auto share = [total](double weight) { return weight != 0.0 ? weight / total : 0.0; };
  return {share(device), share(host), top + std::log(total)};
}

merged_row merge_exactly(const row_weights& weights, const float* out, const float* num,
                         std::uint32_t head_dim, float* to) {
  const auto device = static_cast<float>(weights.device);
  const auto host = static_cast<float>(weights.host);
  std::fill_n(to, head_dim, 0.0f);
  if (device != 0.0f) {
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      to[d] = device * out[d];
    }
  }
  if (host != 0.0f) {
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      to[d] += host * num[d];
    }
  }
  return {static_cast<float>(weights.lse), {}};
}

/// One row with an estimate of the host's; the names are finish_estimate.hpp's.
class estimated_row {
 public:
  estimated_row(const merge_inputs& in, std::size_t row, std::uint32_t head_dim,
                const row_weights& weights)
      : host_(in.scalars[row]),
        weights_(weights),
        head_dim_(head_dim),
        out_(weights.device != 0.0 ? in.out + row * head_dim : nullptr),
        num_(in.num + row * head_dim),
        correction_(in.correction + row * head_dim),
        cross_(in.cross + row * head_dim) {}

  merged_row finish(bool unbiased, float* to) const {
    const double h = weights_.host;
    row_error_terms<double> terms{};
    double cross = 0.0;
    for (std::uint32_t d = 0; d < head_dim_; ++d) {
      const point at = look(d);
      terms.bias2 += at.bias * at.bias;
      terms.o0_distance2 += at.distance * at.distance;
      cross += double{cross_[d]} * at.distance;
    }
    terms.variance = term_variance(host_, h, cross, terms.o0_distance2);
    terms.beta = shrink_factor(host_, h, terms.bias2, terms.variance, unbiased);
    const double growth = 1.0 + terms.beta * h * double{host_.correction_den};
    terms.final_share = h / growth;
    const double step = terms.beta / growth;
    double final_cross = 0.0;
    double final_distance2 = 0.0;
    for (std::uint32_t d = 0; d < head_dim_; ++d) {
      const point at = look(d);
      const double value = at.o0 + step * at.bias;
      const double distance = at.distance + step * at.bias;
      final_cross += double{cross_[d]} * distance;
      final_distance2 += distance * distance;
      terms.out2 += value * value;
      to[d] = static_cast<float>(value);
    }
    terms.final_variance = term_variance(host_, terms.final_share, final_cross, final_distance2);
    return {static_cast<float>(weights_.lse + std::log(growth)),
            report_row(host_, h, terms, unbiased)};
  }

 private:
  /// One dimension.
  struct point {
    double o0;
    double distance;  // o0 - oh
    double bias;      // T
  };

  point look(std::uint32_t d) const {
    const double oh = num_[d];
    const double od = out_ != nullptr ? double{out_[d]} : 0.0;
    const double o0 = weights_.device * od + weights_.host * oh;
    return {o0, weights_.device * (od - oh),
            weights_.host * (double{correction_[d]} - double{host_.correction_den} * o0)};
  }

  const estimate_scalars& host_;
  const row_weights& weights_;
  const std::uint32_t head_dim_;
  const float* out_;
  const float* num_;
  const float* correction_;
  const float* cross_;
};

}  // namespace

merged_row merge_row(const merge_inputs& in, std::size_t row, std::uint32_t head_dim, bool unbiased,
                     float* to) {
  const float scale = in.scale != nullptr ? in.scale[row] : nothing;
  if (in.scalars != nullptr && scale != nothing) {
    const row_weights weights = weigh(in.lse[row], scale, 1.0);
    return estimated_row(in, row, head_dim, weights).finish(unbiased, to);
  }
  const double den = scale != nothing ? double{in.den[row]} : 0.0;
  merged_row merged = merge_exactly(weigh(in.lse[row], scale, den), in.out + row * head_dim,
                                    in.num + (scale != nothing ? row * head_dim : 0), head_dim, to);
  if (in.scalars != nullptr && in.scalars[row].certifiable == 0) {
    merged.report = unknown_row();
  }
  return merged;
}

}  // namespace kvtier::gpu
