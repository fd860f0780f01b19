#include "runtime/sequence_cut.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/runtime_state.hpp"
#include "runtime/tile_reads.hpp"

namespace kvtier {
namespace {

/// The first cut that all sliding layers still hold the window of.
std::uint64_t earliest_cut(const geometry& sizes, const sequence::state& from) {
  std::uint64_t earliest = 0;
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    const std::uint64_t first = from.lanes[lane].first * sizes.extent_tokens;
    if (sizes.kind_of(lane).sliding() && first > 0) {
      earliest = std::max(earliest, first + sizes.kind_of(lane).window - 1);
    }
  }
  return earliest;
}

/// Pins device copies while it lives.
class device_pins {
 public:
  explicit device_pins(tier_manager& tiers) : tiers_(tiers) {}
  ~device_pins() {
    const auto lock = tiers_.lock();
    for (extent* what : pinned_) {
      tiers_.unpin(lock, *what, tier::device);
    }
  }
  device_pins(const device_pins&) = delete;
  device_pins& operator=(const device_pins&) = delete;

  void add(const tier_manager::lock_type& lock, extent& what) {
    pinned_.push_back(&what);
    tiers_.pin(lock, what, tier::device);
  }

 private:
  tier_manager& tiers_;
  std::vector<extent*> pinned_;
};

enum class source_tier : std::uint8_t { device, host };

void copy_blocks(runtime::state& owner, const tail_copy& copy, source_tier source) {
  const memory_tiers& memory = owner.memory;
  for (std::size_t i = 0; i < copy.to->device.slots.size(); ++i) {
    const bool up = source == source_tier::host;
    owner.device->copy(
        memory.device(copy.to->device.slots[i]),
        up ? memory.host(copy.from->host.slots[i]) : memory.device(copy.from->device.slots[i]),
        owner.sizes.block_bytes,
        up ? gpu::copy_kind::host_to_device : gpu::copy_kind::device_to_device, *owner.h2d);
  }
}

/// What has a complete copy there; returns the others.
std::vector<tail_copy> copy_on_device(runtime::state& owner, std::span<const tail_copy> copies) {
  std::vector<tail_copy> resident, others;
  std::vector<std::shared_ptr<gpu::event>> written;  // the sources' last writes; some are null
  device_pins pins(*owner.tiers);
  {
    const auto lock = owner.tiers->lock();
    for (const tail_copy& copy : copies) {
      const extent& from = *copy.from;
      const bool here = from.device.state == copy_state::valid && from.lost.empty();
      (here ? resident : others).push_back(copy);
      if (here) {
        pins.add(lock, *copy.from);
        written.push_back(from.written);
      }
    }
  }
  for (std::size_t i = 0; i < resident.size(); ++i) {
    if (written[i] != nullptr) {
      owner.device->wait(*owner.h2d, *written[i]);
    }
    copy_blocks(owner, resident[i], source_tier::device);
  }
  if (!resident.empty()) {
    owner.h2d->synchronize();
  }
  return others;
}

/// In the order in which host copies become readable: their slots are few, so none is held while
/// waiting for another.
status copy_from_host(runtime::state& owner, std::span<const tail_copy> copies,
                      const extent** lost) {
  std::vector<extent*> sources;
  for (const tail_copy& copy : copies) {
    sources.push_back(copy.from);
  }
  tile_reads reads(*owner.tiers, std::max(1u, owner.read_ahead_depth() / 2));
  reads.request(sources);
  for (std::vector<extent*> ready;;) {
    if (const status outcome = reads.next(&ready); outcome != status::ok) {
      *lost = ready.front();
      return outcome;
    }
    if (ready.empty()) {
      return status::ok;
    }
    for (const tail_copy& copy : copies) {
      if (std::find(ready.begin(), ready.end(), copy.from) != ready.end()) {
        copy_blocks(owner, copy, source_tier::host);
        owner.links->count_h2d(copy.to->blocks * owner.sizes.block_bytes);
      }
    }
    owner.h2d->synchronize();
  }
}

std::string loss_text(const geometry& sizes, const extent& what) {
  const std::string first = std::to_string(what.first_token);
  return "layer " + std::to_string(sizes.layer_of(what.lane)) + " lost the tokens from " + first +
         " to " + std::to_string(what.first_token + sizes.extent_tokens - 1) + " (" + what.lost +
         "); a cut at token " + first + " does without them";
}

}  // namespace

std::string cut_objection(const geometry& sizes, const sequence::state& from,
                          std::uint64_t tokens) {
  const std::string name = "sequence " + std::to_string(from.id);
  if (from.in_step) {
    return name + " is in a step; end it first";
  }
  if (tokens > from.length) {
    return name + " has " + std::to_string(from.length) + " tokens; ask for no more";
  }
  if (const std::uint64_t earliest = earliest_cut(sizes, from); tokens > 0 && tokens < earliest) {
    return name + " of " + std::to_string(from.length) +
           " tokens has sliding layers that have let go of what this token sees; cut it at token " +
           std::to_string(earliest) + " or later, or compute the tokens anew";
  }
  return {};
}

leading_part leading_part_of(const geometry& sizes, const sequence::state& from,
                             std::uint64_t tokens, open_tail tail) {
  leading_part part{.tokens = tokens, .lanes = std::vector<lane_extents>(sizes.lanes), .cut = {}};
  const std::uint64_t whole = tokens / sizes.extent_tokens;
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    const lane_extents& held = from.lanes[lane];
    lane_extents& kept = part.lanes[lane];
    kept.first = std::min(whole, std::max(held.first, first_visible_extent(sizes, lane, tokens)));
    for (std::uint64_t number = kept.first; number < whole; ++number) {
      kept.extents.push_back(held.extents[number - held.first]);
    }
    if (tokens % sizes.extent_tokens > 0) {
      extent* const cut = held.extents[whole - held.first];
      if (tail == open_tail::kept && !cut->sealed) {
        kept.extents.push_back(cut);
      } else {
        part.cut.push_back(cut);
      }
    }
  }
  return part;
}

status prepare_copies(runtime::state& owner, const tier_manager::lock_type& lock,
                      const std::string& action, const sequence::state& from,
                      const leading_part& part) {
  const std::uint64_t unit = owner.sizes.extent_tokens;
  const std::uint64_t blocks = part.cut.size() * owner.sizes.blocks_for(part.tokens % unit);
  const status room = owner.tiers->prepare(lock, blocks);
  const sequence::state* const alone = &from;
  if (room != status::retry || !fills_tiers(*owner.tiers, lock, {&alone, 1}, blocks)) {
    return room;
  }
  owner.log(log_level::error,
            action + ": a tail needs " + std::to_string(blocks) +
                " device blocks, and the sequence alone fills the tiers; a cut at a multiple of " +
                std::to_string(unit) + " tokens needs none and makes room");
  return status::rejected;
}

std::vector<tail_copy> adopt(tier_manager& tiers, const tier_manager::lock_type& lock,
                             const geometry& sizes, leading_part part, sequence::state& into) {
  into.lanes = std::move(part.lanes);
  for (const lane_extents& lane : into.lanes) {
    for (extent* entry : lane.extents) {
      tiers.retain(lock, *entry);
    }
  }
  std::vector<tail_copy> copies;
  if (!part.cut.empty()) {
    const auto in_tail = static_cast<std::uint32_t>(part.tokens % sizes.extent_tokens);
    into.length = part.tokens - in_tail;
    grow_tail(tiers, lock, sizes, into, in_tail);
    for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
      copies.push_back({.from = part.cut[lane], .to = into.lanes[lane].extents.back()});
    }
  }
  into.length = part.tokens;
  return copies;
}

status copy_tails(runtime::state& owner, std::span<const tail_copy> tails,
                  const std::string& action) {
  const auto give_up = [&](const std::exception& error) {
    owner.log(log_level::error, action + " failed: " + error.what());
    return status::io_error;
  };
  try {
    const std::vector<tail_copy> below = copy_on_device(owner, tails);
    const extent* lost = nullptr;
    const status outcome = copy_from_host(owner, below, &lost);
    if (lost != nullptr) {
      owner.log(log_level::error, action + ": " + loss_text(owner.sizes, *lost));
    }
    return outcome;
  } catch (const gpu::device_error& error) {
    return give_up(error);
  } catch (const std::bad_alloc& error) {
    return give_up(error);
  }
}

}  // namespace kvtier
