/// The seam between the tier manager's decisions and the links that carry them out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "runtime/extent.hpp"
#include "storage/status.hpp"

namespace kvtier {

/// Order of service on a link.
enum class link_priority : std::uint8_t {
  demand,      ///< a step waits for it
  prefetch,    ///< wanted soon
  write_back,  ///< nobody waits
};

/// Carries extents between tiers. Thread-safe. Called with the tier manager's lock held, so it must
/// not call back synchronously into the manager other than through `done`, which may run on any
/// thread, at once or later, exactly once. The slots named by the extent belong to the transfer
/// until then.
class mover {
 public:
  using done_callback = std::function<void(status)>;

  virtual ~mover() = default;
  virtual void demote(const extent& what, link_priority priority, done_callback done) = 0;
  virtual void promote(const extent& what, link_priority priority, done_callback done) = 0;
  virtual void spill(const extent& what, link_priority priority, done_callback done) = 0;
  virtual void fetch(const extent& what, link_priority priority, done_callback done) = 0;
  /// Takes the checksums of a host copy that has just arrived from the device; called on the
  /// manager's thread without its lock.
  virtual std::vector<std::vector<storage::tile_checksum>> checksums(const extent& what) = 0;
  /// Claims disk slots for all blocks of `what` (returns false and claims nothing when there are
  /// not enough) and gives them back.
  virtual bool claim_disk(const extent& what, std::vector<disk_place>* places) = 0;
  virtual void release_disk(const std::vector<disk_place>& places) = 0;
  /// Claims a place for the token index of `what`, which is left empty if its lane has none. False:
  /// no place is free, and one will be when extents that are released already have gone.
  virtual bool claim_index(const extent& what, std::optional<slot>* place) = 0;
  /// Gives the place of `what`, which has one, back.
  virtual void release_index(const extent& what) = 0;
  /// Builds the token index from a host copy that has just arrived from the device; called like
  /// `checksums`.
  virtual void build_index(const extent& what) = 0;
};

}  // namespace kvtier
