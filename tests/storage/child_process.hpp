/// Runs a piece of a test in a child process, for limits and filters that cannot be taken back.
#pragma once

#include <functional>
#include <string>

namespace kvtier::storage::test {

/// Forks; the child runs `body` and its text comes back. An exception's text comes back after
/// "threw: ". The caller must have no other threads. Fails the test when the child is killed.
std::string run_in_child(const std::function<std::string()>& body);

/// From now on in this process, io_uring_setup fails with `error_number`. Returns whether the
/// kernel took the filter.
bool forbid_io_uring(int error_number);

}  // namespace kvtier::storage::test
