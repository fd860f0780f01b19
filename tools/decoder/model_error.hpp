/// The one exception of loading a model folder.
#pragma once

#include <stdexcept>

namespace kvtier::decoder {

/// A model folder that cannot be used. The message names file, place, value and remedy in one line.
class model_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace kvtier::decoder
