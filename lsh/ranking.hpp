/// The heaviest of many, one after the other. Private to lsh/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvtier::lsh {

/// A token or page by its place; weights are never NaN.
struct ranked {
  float weight;
  std::uint32_t place;

  /// Whether `a` comes before `b`: it is heavier or, of equal weight, earlier.
  friend bool operator<(const ranked& a, const ranked& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.place < b.place;
  }
};

/// Sorts only as far as it is asked: few of many cost about one pass.
class ranking {
 public:
  /// About `expected` of `all` will be asked for.
  ranking(std::vector<ranked> all, std::size_t expected)
      : all_(std::move(all)), batch_(std::max<std::size_t>(expected, 256)) {}

  /// The next one, or null after the last.
  const ranked* next() {
    if (at_ == sorted_) {
      sort_more();
    }
    return at_ < sorted_ ? &all_[at_++] : nullptr;
  }

 private:
  void sort_more() {
    const auto from = all_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    sorted_ = std::min(all_.size(), sorted_ + batch_);
    const auto to = all_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    if (to != all_.end()) {
      std::nth_element(from, to, all_.end());
    }
    std::sort(from, to);
    batch_ = sorted_;
  }

  std::vector<ranked> all_;
  std::size_t batch_;
  std::size_t at_ = 0;
  std::size_t sorted_ = 0;
};

}  // namespace kvtier::lsh
