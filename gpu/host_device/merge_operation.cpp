#include "gpu/host_device/merge_operation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvtier::gpu {
namespace {

/// The inputs of consecutive rows; scale, den and num are null without host sums.
struct merge_inputs {
  const float* out = nullptr;
  const float* lse = nullptr;
  const float* scale = nullptr;
  const float* den = nullptr;
  const float* num = nullptr;
};

/// Weights of the device's and the host's vector in one row, and its log-sum of exponentials.
struct row_weights {
  float device = 0.0f;
  float host = 0.0f;
  float lse = -std::numeric_limits<float>::infinity();
};

row_weights weigh(const merge_inputs& in, std::size_t row) {
  constexpr float nothing = -std::numeric_limits<float>::infinity();
  const float lse = in.lse[row];
  const float scale = in.scale != nullptr ? in.scale[row] : nothing;
  const double top = std::max(lse, scale);
  if (top == nothing) {
    return {};
  }
  const double device = lse == nothing ? 0.0 : std::exp(lse - top);
  const double host = scale == nothing ? 0.0 : std::exp(scale - top);
  const double total = device + (host != 0.0 ? host * double{in.den[row]} : 0.0);
  if (total == 0.0) {
    return {};
  }
  return {static_cast<float>(device / total), static_cast<float>(host / total),
          static_cast<float>(top + std::log(total))};
}

/// Vectors of weight 0 are not touched: they may hold anything.
void combine(const merge_inputs& in, std::size_t row, std::uint32_t head_dim,
             const row_weights& weights, float* to) {
  std::fill_n(to, head_dim, 0.0f);
  if (weights.device != 0.0f) {
    const float* out = in.out + row * head_dim;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      to[d] = weights.device * out[d];
    }
  }
  if (weights.host != 0.0f) {
    const float* num = in.num + row * head_dim;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      to[d] += weights.host * num[d];
    }
  }
}

class merge_operation final : public operation {
 public:
  merge_operation(device_context& context, const merge_args& args)
      : context_(context), args_(args) {}

  const char* name() const noexcept override { return "merge"; }

  std::uint64_t bytes() const noexcept override {
    const std::uint64_t inputs = args_.host_scale != nullptr ? 2 : 1;
    return std::uint64_t{args_.rows} * args_.head_dim *
           (inputs * sizeof(float) + element_bytes(args_.merged_element));
  }

  void start() override {
    if (context_.reads_in_halves()) {
      read_early();
    }
    const std::size_t rows = args_.rows;
    context_.poison(args_.merged, rows * args_.head_dim * element_bytes(args_.merged_element));
    if (args_.merged_lse != nullptr) {
      context_.poison(args_.merged_lse, rows * sizeof(float));
    }
  }

  void finish() override {
    constexpr std::size_t rows_per_task = 64;
    const std::size_t tasks = (args_.rows + rows_per_task - 1) / rows_per_task;
    context_.parallel_for(tasks, [this](std::size_t task) {
      std::vector<float> row_values(args_.head_dim);
      const std::size_t end = std::min<std::size_t>(args_.rows, (task + 1) * rows_per_task);
      for (std::size_t row = task * rows_per_task; row < end; ++row) {
        merge_row(row, row_values.data());
      }
    });
  }

 private:
  void read_early() {
    early_rows_ = (std::size_t{args_.rows} + 1) / 2;
    const auto keep = [this](std::vector<float>& copy, const float* from, std::size_t width) {
      if (from != nullptr) {
        copy.assign(from, from + early_rows_ * width);
      }
      return from != nullptr ? copy.data() : nullptr;
    };
    early_ = {keep(out_, args_.out, args_.head_dim), keep(lse_, args_.lse, 1),
              keep(scale_, args_.host_scale, 1), keep(den_, args_.host_den, 1),
              keep(num_, args_.host_num, args_.head_dim)};
  }

  void merge_row(std::size_t row, float* values) {
    const merge_inputs late{args_.out, args_.lse, args_.host_scale, args_.host_den, args_.host_num};
    const merge_inputs& in = row < early_rows_ ? early_ : late;
    const row_weights weights = weigh(in, row);
    combine(in, row, args_.head_dim, weights, values);
    const std::size_t bytes = args_.head_dim * element_bytes(args_.merged_element);
    from_float(args_.merged_element, values, static_cast<std::byte*>(args_.merged) + row * bytes,
               args_.head_dim);
    if (args_.merged_lse != nullptr) {
      args_.merged_lse[row] = weights.lse;
    }
  }

  device_context& context_;
  const merge_args args_;
  std::size_t early_rows_ = 0;
  merge_inputs early_;  // of the vectors below
  std::vector<float> out_, lse_, scale_, den_, num_;
};

}  // namespace

std::unique_ptr<operation> make_merge(device_context& context, const merge_args& args) {
  return std::make_unique<merge_operation>(context, args);
}

}  // namespace kvtier::gpu
