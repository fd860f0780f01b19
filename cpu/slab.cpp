#include "cpu/slab.hpp"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

namespace kvtier::cpu {

namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

std::string reason(int error) { return std::strerror(error); }

/// Prefers `node` for pages of the mapping that are not there yet.
void prefer_node(void* data, std::size_t bytes, std::int32_t node) {
  constexpr std::size_t bits = sizeof(unsigned long) * 8;
  const auto index = static_cast<std::size_t>(node);
  std::vector<unsigned long> mask(index / bits + 1);
  mask[index / bits] = 1UL << (index % bits);
  // The kernel reads one bit less than it is told.
  if (syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, mask.data(), mask.size() * bits + 1, 0) ==
      0) {
    return;
  }
  if (errno != EPERM && errno != ENOSYS) {
    throw std::invalid_argument("slab: cannot place memory on NUMA node " + std::to_string(node) +
                                " (" + reason(errno) +
                                "); use an OS index of detect_topology().nodes, or -1");
  }
}

}  // namespace

slab_error::slab_error(const std::string& what)
    : what_(std::make_shared<const std::string>(what)) {}

slab::slab(std::size_t bytes, const slab_options& options) {
  if (bytes == 0) {
    return;
  }
  if (options.numa_node < -1) {
    throw std::invalid_argument("slab: NUMA node " + std::to_string(options.numa_node) +
                                " is not an OS index; use 0 or more, or -1 for none");
  }
  const auto fail = [bytes](int error) {
    throw slab_error("slab: cannot map " + std::to_string(bytes) + " bytes of host memory (" +
                     reason(error) + "); lower the tier's size or raise the process's limits");
  };
  if (bytes > std::numeric_limits<std::size_t>::max() - huge_page) {
    fail(ENOMEM);
  }
  const std::size_t mapping_bytes = bytes + huge_page;
  void* mapping =
      mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    fail(errno);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  const std::size_t skip = (huge_page - address % huge_page) % huge_page;
  slab made;  // owns the mapping from here on, also when placement throws
  made.mapping_ = mapping;
  made.mapping_bytes_ = mapping_bytes;
  made.data_ = static_cast<std::byte*>(mapping) + skip;
  made.size_ = bytes;
  if (options.numa_node >= 0) {
    prefer_node(made.data_, bytes, options.numa_node);
  }
  // Advice only: kernels without the feature refuse it, and the memory works all the same.
  if (options.huge_pages) {
    (void)madvise(made.data_, bytes, MADV_HUGEPAGE);
  }
  if (options.dont_dump) {
    (void)madvise(mapping, mapping_bytes, MADV_DONTDUMP);
  }
  *this = std::move(made);
}

slab::~slab() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapping_bytes_);
  }
}

slab::slab(slab&& other) noexcept { *this = std::move(other); }

slab& slab::operator=(slab&& other) noexcept {
  if (this != &other) {
    if (mapping_ != nullptr) {
      munmap(mapping_, mapping_bytes_);
    }
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    mapping_ = std::exchange(other.mapping_, nullptr);
    mapping_bytes_ = std::exchange(other.mapping_bytes_, 0);
  }
  return *this;
}

}  // namespace kvtier::cpu
