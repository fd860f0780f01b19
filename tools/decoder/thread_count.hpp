/// OpenMP's thread count, which oneDNN and the loops of the decoder go by.
#pragma once

#include <omp.h>

#include <cstdint>

namespace kvtier::decoder {

/// Sets the count of the calling thread and puts the former one back at the end. 0 leaves it alone.
class thread_count {
 public:
  explicit thread_count(std::uint32_t threads) : before_(omp_get_max_threads()) {
    if (threads != 0) {
      omp_set_num_threads(static_cast<int>(threads));
    }
  }
  ~thread_count() { omp_set_num_threads(before_); }
  thread_count(const thread_count&) = delete;
  thread_count& operator=(const thread_count&) = delete;

 private:
  int before_;
};

/// Elements from which a loop over them is worth waking other threads.
constexpr std::uint64_t parallel_elements = 1u << 15;

}  // namespace kvtier::decoder
