#include "runtime/tier_budget.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "runtime/prefill_ring.hpp"
#include "runtime/staging.hpp"

namespace kvtier {
namespace {

constexpr std::uint32_t staging_areas = 2;
constexpr std::uint64_t most_slots = std::numeric_limits<std::uint32_t>::max();

/// What the directory, slot pools and placement keep, measured generously: an extent with its
/// vectors is some 500 bytes, its map entries 150; a slot's places and checksums 100.
std::uint64_t metadata_bytes_per_slot(const geometry& sizes) {
  return 128 + 768 / sizes.blocks_per_extent;
}

[[noreturn]] void refuse_cap(const char* cap, std::uint64_t given, std::uint64_t slots,
                             std::uint64_t slot, std::uint64_t others, const std::string& what) {
  throw std::invalid_argument(
      std::string("config.") + cap + " is " + std::to_string(given) + " bytes; this shape needs " +
      std::to_string(others + slots * slot) + " at least (" + std::to_string(slots) +
      " blocks of " + std::to_string(slot) + " and " + std::to_string(others) + " for " + what);
}

std::uint32_t divide_device(const config& options, const geometry& sizes,
                            std::uint64_t ring_bytes) {
  const std::uint64_t least = std::uint64_t{2} * sizes.lanes * sizes.blocks_per_extent;
  const std::uint64_t slots = options.device_memory > ring_bytes
                                  ? (options.device_memory - ring_bytes) / sizes.block_bytes
                                  : 0;
  if (slots < least) {
    refuse_cap("device_memory", options.device_memory, least, sizes.block_bytes, ring_bytes,
               "the prefill ring). Raise it, or use smaller blocks or a smaller ring");
  }
  return static_cast<std::uint32_t>(std::min(slots, most_slots));
}

/// Of the host slots, those for reads and extents that pass through: an eighth, at least 3 extents,
/// at most 64 MiB, whole extents.
std::uint64_t transit_slots(const geometry& sizes, std::uint64_t host_slots) {
  const std::uint64_t least = 3 * std::uint64_t{sizes.blocks_per_extent};
  const std::uint64_t transit = std::clamp<std::uint64_t>(
      host_slots / 8, least, std::max(least, (std::uint64_t{64} << 20) / sizes.slot_bytes));
  return transit / sizes.blocks_per_extent * sizes.blocks_per_extent;
}

/// Host memory: staging, metadata of all tiers, their token indexes, and the rest for slots, on
/// whose number the others depend.
class host_division {
 public:
  host_division(const config& options, const geometry& sizes, std::uint32_t device_slots,
                std::uint32_t disk_slots, const index_layout& indexes)
      : options_(options),
        sizes_(sizes),
        has_disk_(disk_slots > 0),
        slots_elsewhere_(std::uint64_t{device_slots} + disk_slots),
        least_slots_((has_disk_ ? 5 : 1) * std::uint64_t{sizes.blocks_per_extent}),
        indexes_(indexes) {}

  void divide(tier_budget& budget) const {
    const std::uint64_t rows = staging_rows();
    const std::uint64_t slots = most_host_slots(rows);
    budget.staging_areas = staging_areas;
    budget.staging_rows = static_cast<std::uint32_t>(rows);
    budget.host_slots = sizes_.whole_extents(slots);
    budget.transit_slots = static_cast<std::uint32_t>(transit(slots));
    budget.metadata_bytes = metadata(slots);
    budget.index_bytes = index_bytes(slots);
    budget.index_extents = budget.index_bytes > 0 ? index_extents(slots) : 0;
  }

 private:
  std::uint64_t transit(std::uint64_t slots) const {
    return has_disk_ ? transit_slots(sizes_, slots) : 0;
  }
  std::uint64_t metadata(std::uint64_t slots) const {
    return metadata_bytes_per_slot(sizes_) * (slots_elsewhere_ + slots);
  }
  std::uint32_t index_extents(std::uint64_t slots) const {
    return indexes_.extents(slots_elsewhere_ + slots - transit(slots));
  }
  std::uint64_t index_bytes(std::uint64_t slots) const {
    return indexes_.bytes(index_extents(slots));
  }
  std::uint64_t staging(std::uint64_t rows) const {
    return staging_areas * staging_pool::area_bytes(
                               options_.shape, static_cast<std::uint32_t>(rows), draws(options_));
  }
  /// Beside the slots; grows with them.
  std::uint64_t others(std::uint64_t slots, std::uint64_t rows) const {
    return staging(rows) + metadata(slots) + index_bytes(slots);
  }
  bool fits(std::uint64_t slots, std::uint64_t rows) const {
    return others(slots, rows) + slots * sizes_.slot_bytes <= options_.host_memory;
  }

  /// What a full step can use, but at most 1/64 of host memory per area; 1/32 where a question is
  /// sampled, of which 64 tokens should fit in one step.
  std::uint64_t staging_rows() const {
    const bool estimates = draws(options_);
    const std::uint64_t heads = options_.shape.query_heads;
    const std::uint64_t least = std::uint64_t{options_.host_query_tokens} * heads;
    const std::uint64_t wanted =
        std::max(options_.max_sequences_per_step * least, estimates ? 64 * heads : 0);
    const std::uint64_t row = staging_pool::area_bytes(options_.shape, 1024, estimates) / 1024;
    const std::uint64_t rows =
        std::min(wanted, std::max(least, options_.host_memory / (estimates ? 32 : 64) / row));
    return fits(least_slots_, rows) ? rows
                                    : least;  // so that the least that is asked for is enough
  }

  std::uint64_t most_host_slots(std::uint64_t rows) const {
    if (!fits(least_slots_, rows)) {
      refuse_cap("host_memory", options_.host_memory, least_slots_, sizes_.slot_bytes,
                 others(least_slots_, rows),
                 index_bytes(least_slots_) > 0
                     ? std::string("staging, metadata and the token indexes of all tiers' blocks). "
                                   "Raise it, give less device memory") +
                           (has_disk_ ? " or disk" : "") +
                           ", or use one bit per coordinate (bits=1)"
                     : "staging and metadata). Raise it, or use smaller blocks");
    }
    std::uint64_t fitting = least_slots_;
    std::uint64_t too_many = std::min(options_.host_memory / sizes_.slot_bytes, most_slots) + 1;
    while (too_many - fitting > 1) {
      const std::uint64_t middle = fitting + (too_many - fitting) / 2;
      (fits(middle, rows) ? fitting : too_many) = middle;
    }
    return fitting;
  }

  const config& options_;
  const geometry& sizes_;
  const bool has_disk_;
  const std::uint64_t slots_elsewhere_, least_slots_;
  const index_layout& indexes_;
};

}  // namespace

bool draws(const config& options) noexcept {
  return options.selector.kind != selector_kind::full &&
         options.selector.kind != selector_kind::none;
}

tier_budget divide_caps(const config& options, const geometry& sizes, std::uint32_t disk_slots,
                        const index_layout& indexes) {
  tier_budget budget;
  const bool offloads = options.host_memory > 0;
  if (offloads) {
    budget.ring_bytes =
        prefill_ring::bytes(sizes, options.ring_buffers, options.ring_buffer_blocks);
  }
  budget.device_slots = divide_device(options, sizes, budget.ring_bytes);
  if (offloads) {
    host_division(options, sizes, budget.device_slots, disk_slots, indexes).divide(budget);
  }
  return budget;
}

}  // namespace kvtier
