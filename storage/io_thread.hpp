/// Threads of io backends.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace kvtier::storage {

/// Starts a thread named `name` (at most 15 characters show) that leaves all signals to the threads
/// of the host process.
std::thread start_io_thread(const std::string& name, std::function<void()> body);

}  // namespace kvtier::storage
