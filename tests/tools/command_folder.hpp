/// A command, run as a user runs it, in a folder of its own per test.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace kvtier::test {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct command_outcome {
  int exit_code = -1;
  std::string out, err;
};

class command_folder : public testing::Test {
 protected:
  explicit command_folder(std::string binary) : binary_(std::move(binary)) {}

  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "kvtier_command_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// `arguments` are shell words, run in the test's folder after what `before` does to the shell;
  /// stdout goes to `out`, stdin comes from `in` ("&-" = closed).
  command_outcome run(const std::string& arguments, const std::string& out = "out.txt",
                      const std::string& before = "", const std::string& in = "/dev/null") const {
    const auto command = "cd '" + folder_.string() + "' && " + before + " '" + binary_ + "' " +
                         arguments + " >" + out + " 2>err.txt <" + in;
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder_ / "out.txt"),
            read_file(folder_ / "err.txt")};
  }

  const std::string binary_;
  std::filesystem::path folder_;
};

}  // namespace kvtier::test
