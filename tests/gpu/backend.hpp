/// The devices that the behaviour suite runs against.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "gpu/make_device.hpp"

namespace kvtier::test {

struct backend {
  std::string name;  ///< of the test cases
  gpu::device_options options;
};

inline std::ostream& operator<<(std::ostream& to, const backend& which) { return to << which.name; }

/// One definition per test binary.
std::vector<backend> backends();

}  // namespace kvtier::test
