/// Placement: which extents leave a tier first.
#pragma once

#include <functional>
#include <memory>

#include "runtime/extent.hpp"

namespace kvtier {

/// Not thread-safe; the tier manager's lock guards it. Decisions depend on the calls only, so that
/// the same calls give the same placement.
class placement_policy {
 public:
  using predicate = std::function<bool(const extent&)>;

  virtual ~placement_policy() = default;

  /// `entry` now belongs to the tier entry.home (first time or after a move; remove it first).
  virtual void insert(extent& entry) = 0;
  virtual void remove(extent& entry) = 0;
  /// A step attends over it.
  virtual void touch(extent& entry) = 0;
  /// The first extent to leave `where` among those for which `may_leave` holds; null if none.
  virtual extent* victim(tier where, const predicate& may_leave) = 0;
};

/// Least recently used goes first; ties cannot happen.
std::unique_ptr<placement_policy> make_lru_placement();

}  // namespace kvtier
