/// What the residency table sees of an extent.
#pragma once

#include "runtime/extent.hpp"
#include "runtime/residency_table.hpp"

namespace kvtier {

inline residency_view view_of(const extent& what) {
  return {.home = what.home,
          .device = what.device.state == copy_state::valid,
          .host = what.host.state == copy_state::valid,
          .disk = what.disk.state == copy_state::valid,
          .wanted = what.host.pins > 0 || what.host.wishes > 0};
}

}  // namespace kvtier
