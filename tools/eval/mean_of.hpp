/// A mean that knows whether there was anything.
#pragma once

#include <cstddef>

#include "tools/eval/query_record.hpp"

namespace kvtier::eval {

class mean_of {
 public:
  void add(double value) {
    sum_ += value;
    ++count_;
  }
  double value() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : not_known; }

 private:
  double sum_ = 0.0;
  std::size_t count_ = 0;
};

}  // namespace kvtier::eval
