#include "storage/io_backend.hpp"

namespace kvtier::storage {

std::unique_ptr<io_backend> make_uring_backend(const io_options&, std::string* why) {
  if (why != nullptr) {
    *why = "built without liburing";
  }
  return nullptr;
}

}  // namespace kvtier::storage
