/// Work that helpers may share. Private to lsh/.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cpu/task_arena.hpp"

namespace kvtier::lsh {

/// Calls body(i) for i in [0, count), by helpers if there are some (null: on this thread). Results
/// must not depend on who calls which.
template <class Body>
void share_work(std::size_t count, cpu::task_arena* helpers, const Body& body) {
  if (helpers != nullptr && count > 1) {
    helpers->parallel_for(count, body);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    body(i);
  }
}

/// Tokens that share_tokens hands out at once.
inline constexpr std::size_t shared_run_tokens = 4096;
constexpr std::size_t shared_runs(std::size_t tokens) {
  return (tokens + shared_run_tokens - 1) / shared_run_tokens;
}

/// Calls body(first, last) for runs of tokens that cover [0, count).
template <class Body>
void share_tokens(std::size_t count, cpu::task_arena* helpers, const Body& body) {
  share_work(shared_runs(count), helpers, [&](std::size_t run) {
    body(run * shared_run_tokens, std::min(count, (run + 1) * shared_run_tokens));
  });
}

}  // namespace kvtier::lsh
