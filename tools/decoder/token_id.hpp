/// What a token id may be.
#pragma once

#include <cstdint>

namespace kvtier::decoder {

/// Ids index tables, so a damaged file must not ask for huge ones.
inline constexpr std::uint64_t largest_token_id = (1u << 24) - 1;

}  // namespace kvtier::decoder
