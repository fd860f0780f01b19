/// cpu/: what the host processor does for kvtier.
///
/// Lives here: topology and placement (hwloc), task arenas (oneTBB), slabs (host allocations that
/// tiers and devices share), element types and the attention kernels, one translation unit per
/// instruction set, chosen once at run time. May depend on: hwloc, oneTBB, the standard library.
/// Nothing else of the project.
#pragma once

#include "cpu/attention.hpp"
#include "cpu/element.hpp"
#include "cpu/isa.hpp"
#include "cpu/slab.hpp"
#include "cpu/task_arena.hpp"
#include "cpu/topology.hpp"
