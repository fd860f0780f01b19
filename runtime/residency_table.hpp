/// The written table of the tier manager: what to do next for an extent, given where it shall lie
/// and where it lies. One place, no timing, checked for completeness by a test.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/tier.hpp"

namespace kvtier {

enum class residency_action : std::uint8_t {
  settle,       ///< nothing to do
  demote,       ///< copy device -> host
  promote,      ///< copy host -> device
  spill,        ///< write host -> disk
  fetch,        ///< read disk -> host
  drop_device,  ///< free the device copy: a verified one lies below
  drop_host,    ///< free the host copy: a verified one lies on disk
};

/// What the table looks at. Only copies that are complete count; with a transfer in flight nobody
/// asks.
struct residency_view {
  tier home = tier::device;
  bool device = false;  ///< valid copy on the device
  bool host = false;    ///< valid copy in host memory
  bool disk = false;    ///< valid copy on disk
  bool wanted = false;  ///< somebody has pinned the host copy, waits for one or will
};

enum class cell : std::uint8_t { no, yes, any };

struct residency_row {
  tier home;
  cell device, host, disk, wanted;
  residency_action action;
};

/// Exactly one row matches any view in which at least one copy exists.
inline constexpr residency_row residency_table[] = {
    // home          device     host       disk       wanted     action
    {tier::device, cell::yes, cell::any, cell::any, cell::any, residency_action::settle},
    {tier::device, cell::no, cell::yes, cell::any, cell::any, residency_action::promote},
    {tier::device, cell::no, cell::no, cell::yes, cell::any, residency_action::fetch},

    {tier::host, cell::yes, cell::yes, cell::any, cell::any, residency_action::drop_device},
    {tier::host, cell::no, cell::yes, cell::any, cell::any, residency_action::settle},
    {tier::host, cell::yes, cell::no, cell::any, cell::any, residency_action::demote},
    {tier::host, cell::no, cell::no, cell::yes, cell::any, residency_action::fetch},

    // A reader that waits for a host copy is served before the device copy goes.
    {tier::disk, cell::yes, cell::any, cell::yes, cell::no, residency_action::drop_device},
    {tier::disk, cell::yes, cell::yes, cell::yes, cell::yes, residency_action::drop_device},
    {tier::disk, cell::yes, cell::no, cell::yes, cell::yes, residency_action::demote},
    {tier::disk, cell::no, cell::yes, cell::yes, cell::no, residency_action::drop_host},
    {tier::disk, cell::no, cell::yes, cell::yes, cell::yes, residency_action::settle},
    {tier::disk, cell::no, cell::no, cell::yes, cell::yes, residency_action::fetch},
    {tier::disk, cell::no, cell::no, cell::yes, cell::no, residency_action::settle},
    {tier::disk, cell::any, cell::yes, cell::no, cell::any, residency_action::spill},
    {tier::disk, cell::yes, cell::no, cell::no, cell::any, residency_action::demote},
};

constexpr bool matches(cell pattern, bool value) noexcept {
  return pattern == cell::any || (pattern == cell::yes) == value;
}

constexpr bool matches(const residency_row& row, const residency_view& view) noexcept {
  return row.home == view.home && matches(row.device, view.device) &&
         matches(row.host, view.host) && matches(row.disk, view.disk) &&
         matches(row.wanted, view.wanted);
}

/// The action of the matching row; settle when there is no copy at all.
constexpr residency_action next_action(const residency_view& view) noexcept {
  for (const residency_row& row : residency_table) {
    if (matches(row, view)) {
      return row.action;
    }
  }
  return residency_action::settle;
}

}  // namespace kvtier
