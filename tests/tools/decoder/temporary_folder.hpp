/// A folder for one test's files, gone afterwards.
#pragma once

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kvtier::test {

class temporary_folder {
 public:
  temporary_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvtier-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("no temporary folder can be made at " + name);
    }
    path_ = name;
  }
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  void write(std::string_view name, std::string_view content) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
  }
  /// Copies the files (not folders) of `from`.
  void copy_from(const std::filesystem::path& from) const {
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
      if (entry.is_regular_file()) {
        std::filesystem::copy_file(entry.path(), path_ / entry.path().filename());
      }
    }
  }

 private:
  std::filesystem::path path_;
};

}  // namespace kvtier::test
