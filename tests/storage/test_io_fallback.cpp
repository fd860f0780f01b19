#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "storage/io_backend.hpp"
#include "tests/storage/block_kit.hpp"
#include "tests/storage/child_process.hpp"

namespace kvtier::storage::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

/// "ok" when a block survives a round trip over `backend`.
std::string round_trip(std::unique_ptr<io_backend> backend) {
  const block_file_options options = small_blocks(2);
  auto file = block_file::create(options, *backend);
  memory_block block(*file, options, 3);
  const aligned_buffer target(file->slot_bytes());
  std::atomic<int> end = -1;
  const auto note = [&](status outcome) { end = static_cast<int>(outcome); };
  const auto wait = [&] {
    while (end < 0) {
      ::usleep(100);
    }
    return static_cast<status>(end.exchange(-1));
  };
  if (file->allocate(&block.stored.slot) != status::ok ||
      file->store(block.stored, block.bytes.span(), io_priority::demand, note) != status::ok ||
      wait() != status::ok ||
      file->load(block.stored, target.span(), io_priority::demand, note) != status::ok ||
      wait() != status::ok) {
    return "failed";
  }
  return std::ranges::equal(target.span(), block.bytes.span()) ? "ok" : "wrong bytes";
}

class forbidden_uring_test : public testing::TestWithParam<int> {};

TEST_P(forbidden_uring_test, auto_takes_threads_and_the_reason_is_given) {
  const int error_number = GetParam();
  const std::string answer = run_in_child([&] {
    if (!forbid_io_uring(error_number)) {
      return std::string("no seccomp here");
    }
    std::string why;
    const bool null = make_uring_backend({}, &why) == nullptr;
    auto automatic = make_io_backend("auto", {});
    const std::string name(automatic->name());
    return (null ? "null: " : "not null: ") + why + "; auto is " + name + ", round trip " +
           round_trip(std::move(automatic));
  });
  if (answer == "no seccomp here") {
    GTEST_SKIP() << "the kernel refuses seccomp filters";
  }
  EXPECT_THAT(answer, StartsWith("null: "));
  EXPECT_THAT(answer, HasSubstr("auto is threads, round trip ok"));
  if (answer.find("built without liburing") == std::string::npos) {
    EXPECT_THAT(answer, HasSubstr(error_number == EPERM ? "seccomp" : "does not know it"));
  }
}

TEST_P(forbidden_uring_test, asking_for_uring_throws_the_reason_and_the_remedy) {
  const std::string answer = run_in_child([&]() -> std::string {
    if (!forbid_io_uring(GetParam())) {
      return "no seccomp here";
    }
    return std::string(make_io_backend("uring", {})->name());
  });
  if (answer == "no seccomp here") {
    GTEST_SKIP() << "the kernel refuses seccomp filters";
  }
  EXPECT_THAT(answer, StartsWith("threw: io_uring is not available"));
  EXPECT_THAT(answer, HasSubstr("use io backend auto or threads"));
}

INSTANTIATE_TEST_SUITE_P(errors, forbidden_uring_test, testing::Values(EPERM, ENOSYS),
                         [](const auto& error) {
                           return error.param == EPERM ? "EPERM" : "ENOSYS";
                         });

TEST(low_memlock, registration_is_refused_and_everything_else_works) {
  std::string why;
  if (make_uring_backend({}, &why) == nullptr) {
    GTEST_SKIP() << why;
  }
  const std::string answer = run_in_child([]() -> std::string {
    const rlimit low{64 << 10, 64 << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &low) != 0) {
      return "no limit";
    }
    // Root holds CAP_IPC_LOCK and so has no limit.
    constexpr uid_t nobody = 65534;
    if (::geteuid() == 0 && ::setuid(nobody) != 0) {
      return "no other user";
    }
    auto backend = make_uring_backend({}, nullptr);
    if (backend == nullptr) {
      return "no ring";
    }
    const aligned_buffer memory(4 << 20);
    const bool registered = backend->register_memory(memory.span());
    return (registered ? "registered, " : "not registered, ") + round_trip(std::move(backend));
  });
  EXPECT_EQ(answer, "not registered, ok");
}

/// A file size limit makes the kernel write a part first and then refuse the rest.
class short_writes_test : public testing::TestWithParam<std::string> {};

TEST_P(short_writes_test, are_continued_until_the_error_shows) {
  std::string why;
  if (GetParam() == "uring" && make_uring_backend({}, &why) == nullptr) {
    GTEST_SKIP() << why;
  }
  const std::string answer = run_in_child([]() -> std::string {
    constexpr std::size_t most = 10'000;
    std::signal(SIGXFSZ, SIG_IGN);
    backend_kit kit(GetParam());
    const int fd = kit.make_file(0);
    const rlimit limit{most, most};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
      return "no limit";
    }
    std::vector<std::byte> bytes = pattern(30'000, 1);
    result_collector results;
    if (kit.io().submit({.kind = io_kind::write,
                         .fd = fd,
                         .buffer = bytes.data(),
                         .length = bytes.size(),
                         .done = results.record(0)}) != status::ok) {
      return "not taken";
    }
    kit.run_until([&] { return results.count() == 1; });
    const io_result end = results.of(0).at(0);
    return std::string(to_string(end.outcome)) + " " + std::to_string(end.error_number) + " " +
           std::to_string(end.transferred);
  });
  EXPECT_EQ(answer, "io error " + std::to_string(EFBIG) + " 10000");
}

INSTANTIATE_TEST_SUITE_P(kinds, short_writes_test, testing::Values("uring", "threads"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvtier::storage::test
