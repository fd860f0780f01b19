/// What every token selector demands of its caller.
#pragma once

#include <cstdint>

#include "lsh/selector.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// Throws std::invalid_argument that names the value unless head_dim is 64, 128 or 256 and the
/// budget is 1 to 1,000,000 millionths.
void check_selector(const selector_config& options, std::uint32_t head_dim);
/// The same; returns head_dim.
std::uint32_t checked_head_dim(const selector_config& options, std::uint32_t head_dim);

/// Throws std::invalid_argument that names the value unless the option `name` is 1 to 1,000,000
/// millionths.
void check_share(const char* name, std::uint32_t ppm);

/// Throws std::invalid_argument that names the value unless the query has 1 to 8 heads of
/// `head_dim` dims, and values.
void check_query(const selector_query& query, std::uint32_t head_dim);

}  // namespace kvtier::lsh
