#include "gpu/host_device/append_operation.hpp"

#include <cstring>
#include <vector>

namespace kvtier::gpu {
namespace {

class append_operation final : public operation {
 public:
  append_operation(device_context& context, const append_args& args)
      : context_(context), args_(args), ranges_(args.ranges.begin(), args.ranges.end()) {
    args_.ranges = ranges_;
  }

  const char* name() const noexcept override { return "append"; }

  std::uint64_t bytes() const noexcept override {
    std::uint64_t rows = 0;
    for (const append_range& range : ranges_) {
      rows += range.count;
    }
    return rows * args_.shape.kv_heads * args_.shape.row_bytes();
  }

  void start() override {
    const std::size_t row_bytes = args_.shape.row_bytes();
    for (const append_range& range : ranges_) {
      const std::uint32_t early = rows_read_early(range);
      for_rows(range, 0, early, [&](std::byte*, const std::byte* k, const std::byte* v) {
        read_early_.insert(read_early_.end(), k, k + row_bytes / 2);
        read_early_.insert(read_early_.end(), v, v + row_bytes / 2);
      });
      for_rows(range, 0, range.count, [&](std::byte* row, const std::byte*, const std::byte*) {
        context_.poison(row, row_bytes);
      });
    }
  }

  void finish() override {
    const std::size_t row_bytes = args_.shape.row_bytes();
    const std::byte* early_row = read_early_.data();
    for (const append_range& range : ranges_) {
      const std::uint32_t early = rows_read_early(range);
      for_rows(range, 0, early, [&](std::byte* row, const std::byte*, const std::byte*) {
        std::memcpy(row, early_row, row_bytes);
        early_row += row_bytes;
      });
      for_rows(range, early, range.count,
               [&](std::byte* row, const std::byte* k, const std::byte* v) {
                 std::memcpy(row, k, row_bytes / 2);
                 std::memcpy(row + row_bytes / 2, v, row_bytes / 2);
               });
    }
  }

 private:
  std::uint32_t rows_read_early(const append_range& range) const noexcept {
    return context_.reads_in_halves() ? (range.count + 1) / 2 : 0;
  }

  /// Calls visit(row in the block, its k, its v) for rows [begin, end) of `range`, every head.
  template <class Visit>
  void for_rows(const append_range& range, std::uint32_t begin, std::uint32_t end,
                const Visit& visit) {
    const std::size_t row_bytes = args_.shape.row_bytes();
    const auto* k = static_cast<const std::byte*>(args_.k);
    const auto* v = static_cast<const std::byte*>(args_.v);
    for (std::uint32_t head = 0; head < args_.shape.kv_heads; ++head) {
      for (std::uint32_t i = begin; i < end; ++i) {
        const std::size_t row = std::size_t{head} * args_.shape.block_tokens + range.first_row + i;
        const std::size_t source =
            (std::size_t{range.first_token} + i) * args_.slice.kv_heads_total +
            args_.slice.kv_head_first + head;
        const std::size_t offset = source * (row_bytes / 2);
        visit(range.block + row * row_bytes, k + offset, v + offset);
      }
    }
  }

  device_context& context_;
  append_args args_;
  std::vector<append_range> ranges_;
  std::vector<std::byte> read_early_;  // rows, in the order of for_rows
};

}  // namespace

std::unique_ptr<operation> make_append(device_context& context, const append_args& args) {
  return std::make_unique<append_operation>(context, args);
}

}  // namespace kvtier::gpu
