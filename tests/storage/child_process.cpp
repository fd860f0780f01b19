#include "tests/storage/child_process.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <exception>

#include "storage/unique_fd.hpp"

namespace kvtier::storage::test {
namespace {

std::string text_of(const std::function<std::string()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
}

}  // namespace

std::string run_in_child(const std::function<std::string()>& body) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) {
    ADD_FAILURE() << "no pipe";
    return {};
  }
  unique_fd from_child(ends[0]);
  unique_fd to_parent(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = text_of(body);
    const ssize_t written = ::write(to_parent.get(), text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  to_parent = unique_fd();
  std::string text;
  std::array<char, 512> piece{};
  ssize_t got = 0;
  while ((got = ::read(from_child.get(), piece.data(), piece.size())) > 0) {
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  int how = 0;
  ::waitpid(child, &how, 0);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << "the child died, wait status " << how;
  return text;
}

bool forbid_io_uring(int error_number) {
  std::array filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K,
                           SECCOMP_RET_ERRNO | static_cast<unsigned>(error_number)),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace kvtier::storage::test
