/// The step plan: made once per step and sequence, immutable. For every lane it says which token
/// ranges the device attends and which are offloaded, so that "every token exactly once" is a
/// property of one object, whatever moves meanwhile.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/attention.hpp"
#include "runtime/geometry.hpp"
#include "runtime/memory_tiers.hpp"
#include "runtime/sequence_state.hpp"

namespace kvtier {

/// How a range of the plan is attended.
enum class attend_mode : std::uint8_t {
  exact,    ///< every visible token
  ignored,  ///< selector `none`
  sampled,  ///< by the token selector
};

/// Tokens [first_token, last_token) of one extent that lies below the device.
struct offloaded_range {
  extent* what = nullptr;
  std::uint64_t first_token = 0, last_token = 0;
  tier where = tier::host;  ///< host or disk, by the extent's home when the plan was made
};

struct lane_plan {
  std::vector<gpu::kv_range> device;       ///< blocks on the device, the new tokens' included
  std::vector<extent*> device_extents;     ///< what these blocks belong to
  std::vector<gpu::append_range> append;   ///< where k and v of the new tokens go
  std::vector<offloaded_range> offloaded;  ///< sealed extents below the device, oldest first
  attend_mode offloaded_mode = attend_mode::exact;
};

/// One sequence's part of a step. Holds device and plan pins on every extent it names from
/// `pin_plan` to `unpin_plan`; host copies are pinned when they are attended.
struct sequence_plan {
  sequence::state* target = nullptr;
  std::uint32_t tokens = 0;       ///< new tokens
  std::uint32_t first_token = 0;  ///< row of the first of them in the step's activations
  std::uint64_t position = 0;     ///< absolute position of the first of them
  bool exact = false;             ///< every lane is exact by request
  std::vector<lane_plan> lanes;
};

/// What a plan is made for.
struct plan_request {
  std::uint32_t tokens = 1;     ///< new ones
  std::uint32_t first_row = 0;  ///< of the step's activations
  bool exact = false;           ///< whatever the lanes' modes
};

/// Plans a step over the sequence as grow_tail left it.
sequence_plan make_plan(const geometry& sizes, const memory_tiers& memory,
                        const std::vector<attend_mode>& lane_modes, sequence::state& target,
                        const plan_request& request);

/// Whether all extents whose home is the device are there by now.
bool device_copies_ready(const geometry& sizes, const sequence::state& target);

/// Which tokens of a sequence shall stay on the device while others can go.
struct residency_wish {
  std::uint64_t sinks = 0;   ///< first tokens
  std::uint64_t window = 0;  ///< last tokens, the new ones included
};

/// Touches every extent of the plan, oldest first, so that the coldest of a sequence are its oldest
/// tokens; marks those that the wish names as kept.
void touch_plan(tier_manager& tiers, const tier_manager::lock_type& lock, const geometry& sizes,
                const residency_wish& wish, const sequence_plan& plan);

void pin_plan(tier_manager& tiers, const tier_manager::lock_type& lock, const sequence_plan& plan);
/// The step ended: homes may change again.
void unpin_plan(const tier_manager::lock_type& lock, const sequence_plan& plan);
/// The device is done with the step: copies may move again.
void unpin_device(tier_manager& tiers, const tier_manager::lock_type& lock,
                  const sequence_plan& plan);

/// Invariant 9: per lane, the ranges cover exactly the tokens that some query token of the step
/// sees, each once. Returns false with what is wrong in *why.
bool covers_exactly_once(const geometry& sizes, const sequence_plan& plan, std::string* why);

}  // namespace kvtier
