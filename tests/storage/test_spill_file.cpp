#include "storage/spill_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "storage/block_file.hpp"
#include "tests/storage/block_kit.hpp"
#include "tests/storage/child_process.hpp"

namespace kvtier::storage::test {
namespace {

using std::filesystem::path;
using testing::AllOf;
using testing::HasSubstr;

/// A directory that goes with the test.
class spill_file_test : public testing::Test {
 protected:
  spill_file_test() {
    std::string name = testing::TempDir() + "kvtier-spill-XXXXXX";
    directory_ = ::mkdtemp(name.data());
  }
  ~spill_file_test() override { std::filesystem::remove_all(directory_); }

  path directory_;
};

std::string refusal(const path& directory, std::uint64_t bytes) {
  try {
    create_spill_file(directory, bytes);
  } catch (const std::system_error& error) {
    return error.what();
  }
  return "not refused";
}

std::uint64_t free_bytes(const path& directory) {
  struct statvfs space {};
  EXPECT_EQ(::statvfs(directory.c_str(), &space), 0);
  return std::uint64_t{space.f_bavail} * space.f_frsize;
}

/// Leaves free space in pieces of 64 KiB: a file of all of it needs blocks for its extents too,
/// which statvfs does not know.
void fragment(const path& directory) {
  constexpr std::uint64_t piece = 64 << 10;
  const std::uint64_t count = free_bytes(directory) / piece;
  for (std::uint64_t i = 0; i < count; ++i) {
    const path name = directory / std::to_string(i);
    const unique_fd fd(::open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    if (::posix_fallocate(fd.get(), 0, piece) != 0) {
      break;
    }
  }
  for (std::uint64_t i = 0; i < count; i += 2) {
    std::filesystem::remove(directory / std::to_string(i));
  }
}

TEST_F(spill_file_test, has_no_name_is_private_and_holds_its_space) {
  const spill_file file = create_spill_file(directory_, 1 << 20);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  struct stat found {};
  ASSERT_EQ(::fstat(file.fd.get(), &found), 0);
  EXPECT_EQ(found.st_nlink, 0U);
  EXPECT_EQ(found.st_mode & 07777U, 0600U);
  EXPECT_EQ(found.st_size, 1 << 20);
  EXPECT_GE(found.st_blocks * 512, 1 << 20);
  EXPECT_NE(::fcntl(file.fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  const bool flagged = (::fcntl(file.fd.get(), F_GETFL) & O_DIRECT) != 0;
  EXPECT_EQ(flagged, file.direct);
}

TEST_F(spill_file_test, is_private_under_any_umask) {
  const mode_t before = ::umask(0);
  const spill_file file = create_spill_file(directory_, 4096);
  ::umask(before);
  struct stat found {};
  ASSERT_EQ(::fstat(file.fd.get(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777U, 0600U);
}

TEST_F(spill_file_test, refuses_a_missing_directory) {
  EXPECT_THAT(refusal(directory_ / "nowhere", 4096),
              AllOf(HasSubstr((directory_ / "nowhere").string()), HasSubstr("create it"),
                    HasSubstr("No such file")));
}

TEST_F(spill_file_test, refuses_a_file_in_place_of_a_directory) {
  std::ofstream(directory_ / "file") << "x";
  EXPECT_THAT(refusal(directory_ / "file", 4096),
              AllOf(HasSubstr((directory_ / "file").string()), HasSubstr("not a directory")));
}

TEST_F(spill_file_test, refuses_a_symbolic_link) {
  std::filesystem::create_directory(directory_ / "real");
  std::filesystem::create_directory_symlink(directory_ / "real", directory_ / "link");
  EXPECT_THAT(refusal(directory_ / "link", 4096),
              AllOf(HasSubstr((directory_ / "link").string()), HasSubstr("symbolic link")));
}

TEST_F(spill_file_test, refuses_a_directory_that_is_not_writable) {
  std::filesystem::create_directory(directory_ / "locked");
  ASSERT_EQ(::chmod((directory_ / "locked").c_str(), 0555), 0);
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  const std::string answer = run_in_child([&]() -> std::string {
    constexpr uid_t nobody = 65534;
    if (::geteuid() == 0 && ::setuid(nobody) != 0) {
      return "no other user";
    }
    return refusal(directory_ / "locked", 4096);
  });
  EXPECT_THAT(answer, AllOf(HasSubstr((directory_ / "locked").string()), HasSubstr("writable"),
                            HasSubstr("Permission denied")));
}

TEST_F(spill_file_test, names_the_bytes_asked_for_and_what_is_free) {
  constexpr std::uint64_t exbibyte = std::uint64_t{1} << 60;
  const std::string answer = refusal(directory_, exbibyte);
  EXPECT_THAT(answer, AllOf(HasSubstr(directory_.string()), HasSubstr(std::to_string(exbibyte)),
                            HasSubstr("bytes free"), HasSubstr("No space left")));
}

/// A file system of its own: 16 MiB, mounted while the test runs.
class small_disk_test : public spill_file_test, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) {
      GTEST_SKIP() << "mounting needs root";
    }
    mount_point_ = directory_ / "disk";
    std::filesystem::create_directory(mount_point_);
    mounted_ = GetParam() == "tmpfs" ? mount_tmpfs() : mount_ext4();
    if (!mounted_) {
      GTEST_SKIP() << "cannot mount a small " << GetParam() << " here";
    }
  }
  void TearDown() override {
    if (mounted_) {
      EXPECT_EQ(::umount2(mount_point_.c_str(), 0), 0);
    }
  }

  bool mount_tmpfs() const {
    return ::mount("none", mount_point_.c_str(), "tmpfs", 0, "size=16m") == 0;
  }
  bool mount_ext4() const {
    const path image = directory_ / "image";
    std::ofstream(image) << "";
    std::filesystem::resize_file(image, 16 << 20);
    const std::string command = "mkfs.ext4 -q -m 0 -F " + image.string() +
                                " >/dev/null 2>&1 && mount -o loop " + image.string() + " " +
                                mount_point_.string() + " >/dev/null 2>&1";
    return std::system(command.c_str()) == 0;
  }

  path mount_point_;
  bool mounted_ = false;
};

TEST_P(small_disk_test, gives_back_its_space_when_the_file_does_not_fit) {
  const std::uint64_t before = free_bytes(mount_point_);
  EXPECT_THAT(refusal(mount_point_, std::uint64_t{64} << 20),
              AllOf(HasSubstr(mount_point_.string()), HasSubstr("67108864 bytes"),
                    HasSubstr(std::to_string(before))));
  EXPECT_EQ(free_bytes(mount_point_), before);
}

TEST_P(small_disk_test, gives_back_its_space_when_allocation_fails_half_way) {
  if (GetParam() != "ext4") {
    GTEST_SKIP() << "statvfs is exact on " << GetParam();
  }
  fragment(mount_point_);
  const std::uint64_t before = free_bytes(mount_point_);
  EXPECT_THAT(refusal(mount_point_, before), HasSubstr("No space left"));
  EXPECT_EQ(free_bytes(mount_point_), before);
}

TEST_P(small_disk_test, gives_back_its_space_when_the_block_file_goes) {
  const std::uint64_t before = free_bytes(mount_point_);
  backend_kit kit("threads");
  block_file_options options = small_blocks(100);
  options.directory = mount_point_;
  auto file = block_file::create(options, kit.io());
  EXPECT_LE(free_bytes(mount_point_) + file->file_bytes(), before);
  EXPECT_EQ(file->direct(), GetParam() == "ext4") << "tmpfs does not count";
  memory_block block(*file, options, 1);
  put(kit, *file, block);
  const aligned_buffer target(file->slot_bytes());
  EXPECT_EQ(load_now(kit, *file, block.stored, target.span()), status::ok);
  file.reset();
  kit.destroy_backend();
  EXPECT_EQ(free_bytes(mount_point_), before);
}

INSTANTIATE_TEST_SUITE_P(kinds, small_disk_test, testing::Values("ext4", "tmpfs"),
                         [](const auto& kind) { return kind.param; });

TEST(block_file_options, are_checked_before_anything_is_taken) {
  backend_kit kit("threads");
  auto message = [&](const auto& change) -> std::string {
    block_file_options options = small_blocks(2);
    change(options);
    try {
      block_file::create(options, kit.io());
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "not refused";
  };
  EXPECT_THAT(message([](auto& o) { o.payload_bytes = 0; }), HasSubstr("payload_bytes"));
  EXPECT_THAT(message([](auto& o) { o.tile_bytes = 0; }), HasSubstr("tile_bytes"));
  EXPECT_THAT(message([](auto& o) { o.capacity_bytes = 100; }),
              AllOf(HasSubstr("capacity_bytes 100"), HasSubstr("give the disk more")));
  EXPECT_THAT(message([](auto& o) { o.capacity_bytes = 32768; }), HasSubstr("with its header"));
  EXPECT_THAT(message([](auto& o) { o.capacity_bytes = ~std::uint64_t{0}; }),
              HasSubstr("more than a file can hold"));
  EXPECT_THAT(message([](auto& o) { o.payload_bytes = ~std::size_t{0}; }),
              HasSubstr("holds no block"));
}

}  // namespace
}  // namespace kvtier::storage::test
