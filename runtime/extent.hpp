/// The directory's entry: one extent, where it shall lie, and where its copies lie now.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/stream.hpp"
#include "runtime/slot_pool.hpp"
#include "runtime/tier.hpp"
#include "storage/block_file.hpp"

namespace kvtier {

/// The one transfer that may be in flight for an extent.
enum class transfer_kind : std::uint8_t {
  none,
  demote,   ///< device -> host
  promote,  ///< host -> device
  spill,    ///< host -> disk
  fetch,    ///< disk -> host, verified
};

/// A copy in device or host memory. While `pins` > 0 its bytes stay where they are (or, while the
/// copy is still absent, it is wanted there).
struct memory_copy {
  copy_state state = copy_state::absent;
  std::vector<slot> slots;  ///< one per block
  std::uint32_t pins = 0;
};

/// The copy in host memory.
struct host_copy : memory_copy {
  std::uint32_t wishes = 0;  ///< of readers that will pin it; others may take its slots meanwhile
};

/// A slot of one of the disk tier's files, and what it holds.
struct disk_place {
  std::uint32_t file = 0;
  storage::stored_block block;
};

struct disk_copy {
  copy_state state = copy_state::absent;
  std::vector<disk_place> places;  ///< one per block
};

/// Guarded by the tier manager's lock, but for what a transfer or a pin holds still.
struct extent {
  // Identity, fixed at creation.
  std::uint64_t id = 0;
  std::uint64_t sequence = 0;  ///< the sequence that fills it
  std::uint32_t lane = 0;
  std::uint64_t first_token = 0;

  // Logical state: a function of the calls made, never of timing.
  tier home = tier::device;      ///< where it shall lie, and where step plans count it
  bool sealed = false;           ///< full and immutable
  std::uint32_t blocks = 0;      ///< blocks that have slots; grows until sealed
  std::uint32_t references = 0;  ///< sequences that contain it
  std::uint32_t plan_pins = 0;   ///< steps between begin and end that plan with its home
  bool kept = false;        ///< holds sinks or the window of a sequence: leaves the device last
  std::uint64_t stamp = 0;  ///< placement's: larger is hotter

  // Physical state.
  memory_copy device;
  host_copy host;
  disk_copy disk;
  transfer_kind transfer = transfer_kind::none;
  bool waiting = false;  ///< queued for slots
  std::uint32_t spill_failures = 0;
  std::string lost;                     ///< not empty: unreadable, and why
  std::optional<slot> index;            ///< of its lane's token indexes; from the first demotion on
  bool indexed = false;                 ///< it is complete
  std::shared_ptr<gpu::event> written;  ///< after the last append; D2H waits for it on the device
  std::vector<std::vector<storage::tile_checksum>>
      checksums;  ///< per block, taken at the first D2H
};

}  // namespace kvtier
