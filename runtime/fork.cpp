#include <string>
#include <utility>
#include <vector>

#include "runtime/kvtier.hpp"
#include "runtime/runtime_state.hpp"
#include "runtime/sequence_cut.hpp"
#include "runtime/sequence_state.hpp"

namespace kvtier {
namespace {

/// Why `parent` cannot be forked after `tokens`; empty if it can.
std::string objection(const geometry& sizes, const sequence::state& parent, std::uint64_t tokens,
                      std::uint64_t max_tokens) {
  if (max_tokens < tokens) {
    return "max_tokens is " + std::to_string(max_tokens) + ", less than what is shared; raise it";
  }
  return cut_objection(sizes, parent, tokens);
}

}  // namespace

status runtime::fork(const sequence& parent, std::uint64_t tokens, const sequence_options& options,
                     sequence* out) {
  const geometry& sizes = state_->sizes;
  auto& tiers = *state_->tiers;
  if (!parent || &parent.get()->owner != state_.get()) {
    state_->log(log_level::error, "fork: no parent, or one of another runtime");
    return status::rejected;
  }
  const std::string action = "fork at token " + std::to_string(tokens);
  std::unique_ptr<sequence::state> child;
  std::vector<tail_copy> tails;
  {
    const auto lock = tiers.lock();
    if (const std::string text = objection(sizes, *parent.get(), tokens, options.max_tokens);
        !text.empty()) {
      state_->log(log_level::error, action + ": " + text);
      return status::rejected;
    }
    leading_part part = leading_part_of(sizes, *parent.get(), tokens, open_tail::copied);
    if (const status room = prepare_copies(*state_, lock, action, *parent.get(), part);
        room != status::ok) {
      return room;
    }
    const std::uint64_t promised = blocks_to_come(sizes, part.lanes, options.max_tokens);
    if (const status room = state_->admit(lock, action, promised); room != status::ok) {
      return room;
    }
    child = std::make_unique<sequence::state>(*state_, state_->next_sequence++);
    child->max_tokens = options.max_tokens;
    child->promised_blocks = promised;
    tails = adopt(tiers, lock, sizes, std::move(part), *child);
  }
  if (const status copied = copy_tails(*state_, tails, action); copied != status::ok) {
    return copied;
  }
  *out = sequence(std::move(child));
  return status::ok;
}

}  // namespace kvtier
