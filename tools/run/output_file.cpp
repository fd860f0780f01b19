#include "tools/run/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ext/stdio_filebuf.h>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "tools/run/usage_error.hpp"

namespace kvtier::run {
namespace {

bool is_regular(int descriptor) {
  struct stat facts {};
  return ::fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode);
}

/// Where opening `path` will make a file; empty if one is there.
std::filesystem::path place_of_new(const std::string& path) {
  std::error_code none;
  if (std::filesystem::exists(path, none)) {
    return {};
  }
  std::filesystem::path place = path;
  // The links of a chain; opening refuses longer ones.
  for (int link = 0; link < 40 && std::filesystem::is_symlink(place, none); ++link) {
    place = place.parent_path() / std::filesystem::read_symlink(place, none);
  }
  return place;
}

}  // namespace

struct output_file::open_file {
  explicit open_file(int descriptor) : buffer(descriptor, std::ios::out), stream(&buffer) {}

  /// Not std::ofstream: the lock belongs to this descriptor.
  __gnu_cxx::stdio_filebuf<char> buffer;
  std::ostream stream;
};

output_file::output_file(std::string flag, std::string path)
    : flag_(std::move(flag)), path_(std::move(path)), made_(place_of_new(path_)) {
  const int descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    throw usage_error(
        fmt::format("{}: cannot write '{}' ({}); name a file in a directory that "
                    "exists and may be written",
                    flag_, path_, std::generic_category().message(errno)));
  }
  file_ = std::make_unique<open_file>(descriptor);
  // Other failures are of file systems that know no locks.
  if (is_regular(descriptor) && ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 &&
      errno == EWOULDBLOCK) {
    throw usage_error(fmt::format(
        "{}: '{}' is being written by another job; wait until it ends, or name another file", flag_,
        path_));
  }
}

output_file::~output_file() {
  if (!made_.empty() && !begun_) {
    std::error_code none;
    std::filesystem::remove(made_, none);
  }
}

void output_file::begin() {
  const int descriptor = file_->buffer.fd();
  if (is_regular(descriptor) && ::ftruncate(descriptor, 0) != 0) {
    throw std::runtime_error(write_complaint(flag_, path_, errno));
  }
  begun_ = true;
}

std::ostream& output_file::stream() noexcept { return file_->stream; }

void output_file::flush() {
  errno = 0;
  if (!file_->stream.flush()) {
    throw std::runtime_error(write_complaint(flag_, path_, errno));
  }
}

void output_file::write(std::string_view text) {
  errno = 0;
  if (!file_->stream.write(text.data(), static_cast<std::streamsize>(text.size())).flush()) {
    throw std::runtime_error(write_complaint(flag_, path_, errno));
  }
}

bool same_file(const std::filesystem::path& first, const std::filesystem::path& second) {
  const auto place = [](const std::filesystem::path& path) {
    std::error_code none;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, none), none);
  };
  std::error_code none;
  return std::filesystem::equivalent(first, second, none) || place(first) == place(second);
}

std::string write_complaint(const std::string& flag, const std::string& path, int error) {
  const std::string why =
      error == 0 ? "" : fmt::format(" ({})", std::generic_category().message(error));
  return fmt::format("{}: cannot write '{}'{}; check that the disk has room", flag, path, why);
}

}  // namespace kvtier::run
