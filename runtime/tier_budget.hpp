/// How the caps of a configuration are spent: slots of each tier, and what lies beside them.
#pragma once

#include <cstdint>

#include "runtime/config.hpp"
#include "runtime/geometry.hpp"
#include "runtime/index_layout.hpp"

namespace kvtier {

/// Whether the selector draws from what is off the device: neither `full` nor `none`.
bool draws(const config& options) noexcept;

struct tier_budget {
  std::uint32_t device_slots = 0, host_slots = 0, transit_slots = 0;
  std::uint64_t ring_bytes = 0;
  std::uint32_t staging_rows = 0;
  std::uint32_t staging_areas = 0;
  std::uint64_t metadata_bytes = 0;
  std::uint32_t index_extents = 0;  ///< extents per indexed lane that there are token indexes for
  std::uint64_t index_bytes = 0;    ///< of them all
};

/// Divides the caps. Throws std::invalid_argument that names the cap, what it must hold at least,
/// and the remedy.
tier_budget divide_caps(const config& options, const geometry& sizes, std::uint32_t disk_slots,
                        const index_layout& indexes);

}  // namespace kvtier
