/// The selector `faiss`: the tokens that an index of the FAISS library finds. A baseline.
#pragma once

#include <cstdint>
#include <memory>

#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// A tile's token index is its keys in bf16 (see faiss_keys); FAISS indexes of whole lists of tiles
/// are built from them when a query first needs them, kept (see faiss_cache) and grown tile by
/// tile.
///
/// Each head searches for tokens with large inner products of query and key, both as they are (for
/// `lsh`: a small Hamming distance of their signs after a rotation, keys taken from their mean).
/// The heads take turns, head 0 first: each takes the best token it found that is not yet taken,
/// until the budget, a number of rows of the union, is used up. Should they find too few, they
/// search for twice as many; tokens that even a search for all does not find come last. A token of
/// a whole tile takes the tile and costs 64 rows. What comes first is taken whatever it costs; else
/// the budget is not exceeded. All that is read has weight 1.
///
/// Throws std::invalid_argument for options that are not supported, and for any if the library was
/// built without FAISS.
std::unique_ptr<token_selector> make_faiss_selector(const selector_config& options,
                                                    std::uint32_t head_dim);

}  // namespace kvtier::lsh
