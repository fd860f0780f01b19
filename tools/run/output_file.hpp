/// Files that a job writes, and nobody else meanwhile.
#pragma once

#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>

namespace kvtier::run {

/// A file that is there before the job starts, so that a bad path fails at once, and that keeps
/// what it holds until the job begins. Regular files are locked (flock) as long as this lives: a
/// second job on the same file is refused. Not thread-safe.
class output_file {
 public:
  /// `flag` is for messages. Throws usage_error if `path` cannot be opened for writing or if
  /// another job holds it.
  output_file(std::string flag, std::string path);
  /// Removes the file if this made it and the job never began.
  ~output_file();
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;

  /// Empties the file: the job begins. Throws std::runtime_error if it cannot.
  void begin();
  /// Valid as long as this; to be written to after `begin`.
  std::ostream& stream() noexcept;
  /// Writes what is buffered. Throws std::runtime_error naming the file if any write failed.
  void flush();
  /// Writes all of `text`, after `begin`. Throws as `flush`.
  void write(std::string_view text);

 private:
  struct open_file;
  std::string flag_, path_;
  std::filesystem::path made_;  ///< what this made, symbolic links followed; empty if nothing
  bool begun_ = false;
  std::unique_ptr<open_file> file_;
};

/// Whether two paths lead to one file, be it there already (links of both kinds followed) or yet to
/// be made.
bool same_file(const std::filesystem::path& first, const std::filesystem::path& second);

/// "--flag: cannot write 'path' (errno's text, if there is one); check that the disk has room".
std::string write_complaint(const std::string& flag, const std::string& path, int error);

}  // namespace kvtier::run
