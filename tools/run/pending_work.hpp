/// What a batch job has still to admit: prompts, and the prefixes that they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tools/run/batch_engine.hpp"
#include "tools/run/batch_scheduler.hpp"
#include "tools/run/prefix_plan.hpp"
#include "tools/run/step_choice.hpp"

namespace kvtier::run {

/// A shared prefix that has been read.
struct read_prefix {
  context_id context = 0;
  std::uint64_t length = 0;
  const batch_result* cost = nullptr;  ///< what reading it took
};

/// Walks the forest of shared prefixes depth first: what continues a prefix comes up once it has
/// been read. Owns the contexts of prefixes while something is still to be forked from them.
class pending_work {
 public:
  /// `plan` must outlive it. `release` gives a context back to the engine.
  pending_work(const prefix_plan& plan, std::function<void(context_id)> release);

  bool empty() const noexcept { return pending_.empty(); }
  work_item front() const { return pending_.front(); }
  void drop_front() { pending_.pop_front(); }

  /// The prefix that `item` is to be forked from, if it is there.
  std::optional<read_prefix> prefix_of(work_item item) const;
  /// Whether some prefix that `item` begins with is held.
  bool holds_prefix_of(work_item item) const;

  /// `item` needs its parent no more; a prefix that nobody waits for goes.
  void settle(work_item item);
  /// Prefix `node` has been read into `context`.
  void add_prefix(std::size_t node, context_id context, const batch_result& cost);
  /// Prefix `node` will not be read: what waits for it continues from the next shorter one that is
  /// there, or from nothing.
  void skip_prefix(std::size_t node);
  /// Gives up all prefixes that `item` begins with.
  void abandon_prefixes_of(work_item item);

  /// Takes out everything: the prompts that are pending, or that wait for a pending prefix or for
  /// one of `reading`. All contexts are released.
  std::vector<std::size_t> take_prompts(std::vector<work_item> reading);

 private:
  std::size_t& parent_of(work_item item);
  std::size_t parent_of(work_item item) const;
  std::size_t live_ancestor(std::size_t node) const;
  void push_children(std::size_t node);
  void abandon(std::size_t node);
  void release(std::size_t node);

  const prefix_plan& plan_;
  const std::function<void(context_id)> release_;
  std::vector<std::size_t> parent_of_node_;    // of nodes still to be admitted; then no_prefix
  std::vector<std::size_t> parent_of_prompt_;  // same for prompts
  std::vector<std::size_t> waiting_;           // per node: what is still to be forked from it
  std::vector<context_id> context_;            // per node, 0 = not there
  std::vector<batch_result> cost_;             // per node
  std::deque<work_item> pending_;              // depth first
};

}  // namespace kvtier::run
