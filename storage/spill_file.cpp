#include "storage/spill_file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string>
#include <system_error>

#include "storage/aligned_buffer.hpp"

namespace kvtier::storage {
namespace {

using std::filesystem::path;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

unique_fd open_directory(const path& directory) {
  const std::string quoted = "disk directory '" + directory.string() + "'";
  struct stat found {};
  if (::lstat(directory.c_str(), &found) != 0) {
    fail(errno, quoted + " cannot be used; create it or name another");
  }
  if (S_ISLNK(found.st_mode)) {
    fail(ELOOP, quoted + " is a symbolic link; name the directory it points to");
  }
  if (!S_ISDIR(found.st_mode)) {
    fail(ENOTDIR, quoted + " is not a directory");
  }
  unique_fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) {
    fail(errno, quoted + " cannot be opened");
  }
  return fd;
}

std::uint64_t free_bytes(int fd) {
  struct statvfs space {};
  if (::fstatvfs(fd, &space) != 0) {
    return 0;
  }
  return std::uint64_t{space.f_bavail} * space.f_frsize;
}

/// Where the file system has no O_TMPFILE: a fresh name, gone again at once.
unique_fd create_and_unlink(int directory) {
  constexpr int attempts = 16;
  std::random_device entropy;
  for (int i = 0; i < attempts; ++i) {
    const std::string name = ".kvtier-" + std::to_string(entropy()) + std::to_string(entropy());
    unique_fd fd(::openat(directory, name.c_str(),
                          O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd) {
      if (::unlinkat(directory, name.c_str(), 0) != 0) {
        fail(errno, "cannot unlink the spill file " + name);
      }
      return fd;
    }
    if (errno != EEXIST) {
      break;
    }
  }
  return unique_fd();
}

unique_fd create_unnamed(int directory, const path& shown) {
  unique_fd fd(::openat(directory, ".", O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC, 0600));
  if (!fd && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL)) {
    fd = create_and_unlink(directory);
  }
  if (!fd) {
    fail(errno,
         "cannot create a spill file in '" + shown.string() + "'; the directory must be writable");
  }
  return fd;
}

void preallocate(int fd, std::uint64_t bytes, const path& shown) {
  auto refuse = [&](int error, std::uint64_t free) {
    fail(error, "cannot reserve " + std::to_string(bytes) + " bytes in '" + shown.string() + "' (" +
                    std::to_string(free) + " bytes free); ask for less or free some space");
  };
  const std::uint64_t free = free_bytes(fd);
  if (bytes > free) {
    refuse(ENOSPC, free);
  }
  int error = EINTR;
  while (error == EINTR) {
    error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  }
  if (error != 0) {
    // A failed fallocate keeps what it got so far. Closing would give that back too, but not while
    // a forked child holds the descriptor.
    if (::ftruncate(fd, 0) != 0) {
      refuse(errno, 0);
    }
    refuse(error, free);
  }
}

bool on_memory_file_system(int fd) {
  struct statfs info {};
  return ::fstatfs(fd, &info) == 0 && (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

/// Whether direct transfers at our alignment are promised; file systems that do not say are left to
/// the trial.
bool alignment_suits(int fd) {
  struct statx info {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0 ||
      (info.stx_mask & STATX_DIOALIGN) == 0) {
    return true;
  }
  return info.stx_dio_mem_align != 0 && info.stx_dio_mem_align <= io_alignment &&
         info.stx_dio_offset_align != 0 && info.stx_dio_offset_align <= io_alignment;
}

bool trial_transfer(int fd) {
  const aligned_buffer buffer(io_alignment);
  std::fill_n(buffer.data(), buffer.size(), std::byte{0});
  const auto length = static_cast<ssize_t>(buffer.size());
  return ::pwrite(fd, buffer.data(), buffer.size(), 0) == length &&
         ::pread(fd, buffer.data(), buffer.size(), 0) == length;
}

bool make_direct(int fd) {
  if (on_memory_file_system(fd) || !alignment_suits(fd)) {
    return false;
  }
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) {
    return false;
  }
  if (trial_transfer(fd)) {
    return true;
  }
  if (::fcntl(fd, F_SETFL, flags) != 0) {
    fail(errno, "cannot leave O_DIRECT mode on the spill file");
  }
  return false;
}

}  // namespace

spill_file create_spill_file(const path& directory, std::uint64_t bytes) {
  const unique_fd place = open_directory(directory);
  spill_file file{create_unnamed(place.get(), directory)};
  preallocate(file.fd.get(), bytes, directory);
  file.direct = make_direct(file.fd.get());
  return file;
}

}  // namespace kvtier::storage
