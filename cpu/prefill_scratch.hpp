/// The packed keys and values of multi-token attention; private to cpu/.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtier::cpu {

/// 32-bit words of one packed block: 256 KiB, so that it stays in L2 beside what streams through.
constexpr std::size_t prefill_scratch_words = std::size_t{64} << 10;

/// The calling thread's scratch, 64-byte aligned, allocated at its first use and kept until it
/// ends.
std::uint32_t* prefill_scratch();

}  // namespace kvtier::cpu
