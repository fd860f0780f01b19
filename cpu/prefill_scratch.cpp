#include "cpu/prefill_scratch.hpp"

#include <memory>

namespace kvtier::cpu {

namespace {

struct scratch {
  alignas(64) std::uint32_t words[prefill_scratch_words];
};

}  // namespace

std::uint32_t* prefill_scratch() {
  // On the heap: as a thread-local array it would come out of every thread's stack.
  thread_local const auto mine = std::make_unique_for_overwrite<scratch>();
  return mine->words;  // NOLINT(clang-analyzer-cplusplus.NewDelete): freed when the thread ends
}

}  // namespace kvtier::cpu
