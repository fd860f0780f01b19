#include "storage/io_backend.hpp"

#include <stdexcept>

namespace kvtier::storage {

std::unique_ptr<io_backend> make_io_backend(std::string_view name, const io_options& options) {
  if (name == "threads") {
    return make_threads_backend(options);
  }
  if (name != "auto" && name != "uring") {
    throw std::invalid_argument("unknown io backend '" + std::string(name) +
                                "'; use auto, uring or threads");
  }
  std::string why;
  if (auto uring = make_uring_backend(options, &why)) {
    return uring;
  }
  if (name == "uring") {
    throw std::runtime_error("io_uring is not available (" + why +
                             "); use io backend auto or threads");
  }
  return make_threads_backend(options);
}

}  // namespace kvtier::storage
