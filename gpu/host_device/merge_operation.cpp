#include "gpu/host_device/merge_operation.hpp"

#include <algorithm>
#include <vector>

#include "gpu/finish_estimate.hpp"
#include "gpu/host_device/merge_row.hpp"

namespace kvtier::gpu {
namespace {

class merge_operation final : public operation {
 public:
  merge_operation(device_context& context, const merge_args& args)
      : context_(context), args_(args) {}

  const char* name() const noexcept override { return "merge"; }

  std::uint64_t bytes() const noexcept override {
    const std::uint64_t inputs = args_.host_scale == nullptr         ? 1
                                 : args_.estimate.scalars == nullptr ? 2
                                                                     : 4;
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
    if (args_.report != nullptr) {
      context_.poison(args_.report, rows * sizeof(row_report));
    }
  }

  void finish() override {
    constexpr std::size_t rows_per_task = 64;
    const std::size_t tasks = (args_.rows + rows_per_task - 1) / rows_per_task;
    context_.parallel_for(tasks, [this](std::size_t task) {
      std::vector<float> row_values(args_.head_dim);
      const std::size_t end = std::min<std::size_t>(args_.rows, (task + 1) * rows_per_task);
      for (std::size_t row = task * rows_per_task; row < end; ++row) {
        merge_one(row, row_values.data());
      }
    });
  }

 private:
  void read_early() {
    early_rows_ = (std::size_t{args_.rows} + 1) / 2;
    const auto keep = [this]<class T>(std::vector<T>& copy, const T* from, std::size_t width) {
      if (from != nullptr) {
        copy.assign(from, from + early_rows_ * width);
      }
      return from != nullptr ? copy.data() : nullptr;
    };
    const std::size_t width = args_.head_dim;
    early_ = {keep(out_, late_.out, width),
              keep(lse_, late_.lse, 1),
              keep(scale_, late_.scale, 1),
              keep(den_, late_.den, 1),
              keep(num_, late_.num, width),
              keep(scalars_, late_.scalars, 1),
              keep(correction_, late_.correction, width),
              keep(cross_, late_.cross, width)};
  }

  void merge_one(std::size_t row, float* values) {
    const merged_row merged = merge_row(row < early_rows_ ? early_ : late_, row, args_.head_dim,
                                        args_.estimate.unbiased, values);
    const std::size_t bytes = args_.head_dim * element_bytes(args_.merged_element);
    from_float(args_.merged_element, values, static_cast<std::byte*>(args_.merged) + row * bytes,
               args_.head_dim);
    if (args_.merged_lse != nullptr) {
      args_.merged_lse[row] = merged.lse;
    }
    if (args_.report != nullptr) {
      args_.report[row] = args_.unknown ? unknown_row() : merged.report;
    }
  }

  device_context& context_;
  const merge_args args_;
  const merge_inputs late_{args_.out,
                           args_.lse,
                           args_.host_scale,
                           args_.host_den,
                           args_.host_num,
                           args_.estimate.scalars,
                           args_.estimate.correction,
                           args_.estimate.cross};
  std::size_t early_rows_ = 0;
  merge_inputs early_;  // of the vectors below
  std::vector<float> out_, lse_, scale_, den_, num_, correction_, cross_;
  std::vector<estimate_scalars> scalars_;
};

}  // namespace

std::unique_ptr<operation> make_merge(device_context& context, const merge_args& args) {
  return std::make_unique<merge_operation>(context, args);
}

}  // namespace kvtier::gpu
