/// Cutting a sequence after any token: what fork and truncate have in common.
///
/// Whole extents before the cut are kept as they are, wherever they lie. The extent that the cut
/// goes through is sealed or somebody else's, so its first blocks are copied into a fresh tail. A
/// sealed extent is therefore always full, and token indexes cover whole tiles: nothing needs to
/// know which tokens of an extent are valid.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/geometry.hpp"
#include "runtime/sequence_state.hpp"
#include "runtime/tier_manager.hpp"

namespace kvtier {

/// Why `from` cannot be cut after `tokens`, with the remedy; empty if it can.
std::string cut_objection(const geometry& sizes, const sequence::state& from, std::uint64_t tokens);

/// What the first tokens of a sequence are made of.
struct leading_part {
  std::uint64_t tokens = 0;
  std::vector<lane_extents> lanes;  ///< extents that are kept as they are
  std::vector<extent*> cut;         ///< per lane the one to copy from; empty if there is none
};

/// Whether the unsealed tail is kept as it is where the cut goes through it, or copied like others.
enum class open_tail : std::uint8_t { kept, copied };

/// The first `tokens` of `from`, for which there must be no cut_objection.
leading_part leading_part_of(const geometry& sizes, const sequence::state& from,
                             std::uint64_t tokens, open_tail tail);

/// Makes room for the copies: ok, retry, or rejected where `from` alone fills the tiers; the reason
/// of the latter goes to the log, after `action`.
status prepare_copies(runtime::state& owner, const tier_manager::lock_type& lock,
                      const std::string& action, const sequence::state& from,
                      const leading_part& part);

/// The first blocks of `from`, and the unsealed extent that they are copied to.
struct tail_copy {
  extent* from = nullptr;
  extent* to = nullptr;
};

/// Makes `into`, an empty sequence, refer to the part and opens the fresh tails. prepare_copies
/// must have succeeded under the same lock, and `into.promised_blocks` committed for what
/// `part.lanes` leave to come.
std::vector<tail_copy> adopt(tier_manager& tiers, const tier_manager::lock_type& lock,
                             const geometry& sizes, leading_part part, sequence::state& into);

/// Fills the fresh tails: from a copy on the device if there is one, else from host memory, into
/// which disk blocks are fetched and verified. Blocks until it is done. Both sides of each copy
/// must stay referenced meanwhile. lost or io_error: the reason goes to the log, after `action`.
status copy_tails(runtime::state& owner, std::span<const tail_copy> tails,
                  const std::string& action);

}  // namespace kvtier
