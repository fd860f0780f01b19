/// storage/: the disk tier below the tier manager.
///
/// Lives here: io backends (io_uring, thread pool, simulated, and a decorator that injects faults)
/// and the block file with its slots, headers and checksums. Memory is handed in as spans; nothing
/// here allocates a slab. May depend on: liburing, xxHash, the standard library. Nothing else of
/// the project.
#pragma once

#include "storage/block_file.hpp"
#include "storage/io_backend.hpp"
#include "storage/status.hpp"
