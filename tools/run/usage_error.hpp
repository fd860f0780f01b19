/// What the user asked for cannot be done as asked.
#pragma once

#include <stdexcept>

namespace kvtier::run {

/// A flag, model or value that cannot be used: the command prints the text, one line that names
/// value, place and remedy, and exits with 2.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace kvtier::run
