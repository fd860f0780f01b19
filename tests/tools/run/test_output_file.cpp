#include "tools/run/output_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/run/usage_error.hpp"

namespace kvtier::run {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class output_files : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "kvtier_files_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = (folder_ / "out").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& text) const { std::ofstream(path_) << text; }
  std::string content() const {
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string complaint() const {
    try {
      const output_file file("--output", path_);
    } catch (const usage_error& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(output_files, keep_their_content_until_the_job_begins) {
  write("old");
  { const output_file refused("--output", path_); }
  EXPECT_EQ(content(), "old");
  output_file file("--output", path_);
  EXPECT_EQ(content(), "old");
  file.begin();
  EXPECT_EQ(content(), "");
  file.stream() << "new";
  file.flush();
  EXPECT_EQ(content(), "new");
}

TEST_F(output_files, leave_nothing_behind_if_the_job_never_begins) {
  { const output_file refused("--output", path_); }
  EXPECT_FALSE(std::filesystem::exists(path_));
  { output_file("--output", path_).begin(); }
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(output_files, are_written_through_symbolic_links) {
  const std::string target = path_;
  path_ = (folder_ / "link").string();
  std::filesystem::create_symlink("out", path_);
  { const output_file refused("--output", path_); }
  EXPECT_FALSE(std::filesystem::exists(target));
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  output_file file("--output", path_);
  file.begin();
  file.write("new");
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  path_ = target;
  EXPECT_EQ(content(), "new");
}

TEST_F(output_files, say_why_a_whole_text_cannot_be_written) {
  output_file full("--html", "/dev/full");
  full.begin();
  try {
    full.write(std::string(1 << 20, 'x'));
    FAIL() << "wrote to a full disk";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(),
                StartsWith("--html: cannot write '/dev/full' (No space left on device)"));
  }
}

TEST_F(output_files, are_the_same_through_links_and_before_they_exist) {
  write("old");
  std::filesystem::create_symlink("out", folder_ / "link");
  std::filesystem::create_hard_link(path_, folder_ / "hard");
  EXPECT_TRUE(same_file(path_, folder_ / "link"));
  EXPECT_TRUE(same_file(path_, folder_ / "hard"));
  EXPECT_TRUE(same_file(folder_ / "new", folder_ / "." / "new"));
  EXPECT_FALSE(same_file(folder_ / "new", path_));
}

TEST_F(output_files, are_refused_to_a_second_job) {
  write("old");
  {
    const output_file first("--output", path_);
    EXPECT_THAT(complaint(), StartsWith("--output: '" + path_ + "' is being written by another"));
    EXPECT_THAT(complaint(), HasSubstr("name another file"));
    EXPECT_EQ(content(), "old");
  }
  EXPECT_EQ(complaint(), "");
}

TEST_F(output_files, that_are_devices_may_be_shared) {
  path_ = "/dev/null";
  output_file first("--output", path_);
  first.begin();
  EXPECT_EQ(complaint(), "");
}

TEST_F(output_files, say_why_they_cannot_be_opened_or_written) {
  path_ = (folder_ / "nowhere" / "out").string();
  EXPECT_THAT(complaint(),
              StartsWith("--output: cannot write '" + path_ + "' (No such file or directory)"));
  output_file full("--logits", "/dev/full");
  full.begin();
  full.stream() << "x";
  try {
    full.flush();
    FAIL() << "wrote to a full disk";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(),
                StartsWith("--logits: cannot write '/dev/full' (No space left on device)"));
  }
}

}  // namespace
}  // namespace kvtier::run
