#include "tools/decoder/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace kvtier::decoder {
namespace {

struct descriptor {
  int number;
  ~descriptor() {
    if (number >= 0) {
      ::close(number);
    }
  }
};

[[noreturn]] void fail(const std::filesystem::path& file, const char* action) {
  throw model_error(file.string() + " cannot be " + action + ": " + std::strerror(errno));
}

}  // namespace

mapped_file::mapped_file(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) {
    fail(file, "opened");
  }
  // Before it is opened: that would wait for the other end of a FIFO.
  if (!S_ISREG(status.st_mode)) {
    throw model_error(file.string() + " is not a regular file; name one");
  }
  const descriptor opened{::open(file.c_str(), O_RDONLY | O_CLOEXEC)};
  if (opened.number < 0 || ::fstat(opened.number, &status) != 0) {
    fail(file, "opened");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) {
    return;
  }
  void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, opened.number, 0);
  if (mapping == MAP_FAILED) {
    fail(file, "mapped");
  }
  data_ = static_cast<const std::byte*>(mapping);
}

mapped_file::mapped_file(mapped_file&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

mapped_file::~mapped_file() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

}  // namespace kvtier::decoder
