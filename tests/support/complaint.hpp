/// What a call complains of.
#pragma once

#include <stdexcept>
#include <string>

namespace kvtier::test {

/// The text of the std::invalid_argument that `call` throws.
template <class Call> std::string complaint_of(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace kvtier::test
