/// Small facts about attention calls that every instruction set's kernels need; private to cpu/.
/// Everything has internal linkage: these headers are compiled under several instruction sets, and
/// the linker must never pick the AVX-512 copy of a function for the scalar code.
#pragma once

#include <cstdint>
#include <limits>

#include "cpu/attention.hpp"

namespace kvtier::cpu {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// Rows [begin, end) of a range.
struct row_span {
  std::uint32_t begin;
  std::uint32_t end;
};

/// The rows of a range of `count` rows that query token `token` sees. Both ends grow with the
/// token, also where nothing is seen (begin == end).
[[maybe_unused]] row_span rows_seen(const visibility& visible, std::uint32_t count,
                                    std::uint32_t token) {
  const std::int64_t end = visible.diagonal + std::int64_t{token} + 1;
  const std::int64_t begin = visible.window == 0 ? 0 : end - std::int64_t{visible.window};
  const auto clamped = [count](std::int64_t row) {
    return row < 0 ? 0u : row > std::int64_t{count} ? count : static_cast<std::uint32_t>(row);
  };
  return {clamped(begin), clamped(end)};
}

}  // namespace
}  // namespace kvtier::cpu
