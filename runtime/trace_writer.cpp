#include "runtime/trace_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "runtime/text_escape.hpp"

namespace kvtier {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::size_t buffer_bytes = std::size_t{256} << 10;

// One row of the viewer: a tid and the end of its latest span.
struct row {
  std::uint32_t tid = 0;
  clock::time_point end;
};

// Writes all bytes; returns errno of a write that failed, else 0.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return written < 0 ? errno : EIO;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

template <class Integer> void append_integer(std::string& out, Integer value) {
  std::array<char, 24> digits{};
  out.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
}

// Nanoseconds as microseconds with three decimals: a double would lose them after some days.
void append_microseconds(std::string& out, std::chrono::nanoseconds time) {
  const std::int64_t ns = time.count();
  if (ns < 0) {
    out.push_back('-');
  }
  const std::uint64_t magnitude =
      ns < 0 ? ~static_cast<std::uint64_t>(ns) + 1 : static_cast<std::uint64_t>(ns);
  append_integer(out, magnitude / 1000);
  const auto fraction = static_cast<unsigned>(magnitude % 1000);
  const std::array<char, 4> decimals{'.', static_cast<char>('0' + fraction / 100),
                                     static_cast<char>('0' + fraction / 10 % 10),
                                     static_cast<char>('0' + fraction % 10)};
  out.append(decimals.data(), decimals.size());
}

}  // namespace

struct trace_writer::impl {
  explicit impl(const std::filesystem::path& file) : path(file) {
    fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
      throw std::system_error(errno, std::generic_category(),
                              "cannot create the trace file \"" + path.string() + '"');
    }
    buffer = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n";
    begin_record();
    buffer += R"("ph":"M","name":"process_name","args":{"name":"kvtier"}})";
  }
  ~impl() {
    if (fd >= 0) {
      ::close(fd);
    }
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;

  void begin_record() {
    buffer += records++ == 0 ? "{\"pid\":" : ",\n{\"pid\":";
    append_integer(buffer, process);
    buffer += ',';
  }

  // The first row of the track that is free from `begin` on.
  std::uint32_t place(std::string_view track, clock::time_point begin, clock::time_point end) {
    auto found = tracks.find(track);
    if (found == tracks.end()) {
      found = tracks.emplace(std::string(track), std::vector<row>{}).first;
    }
    std::vector<row>& rows = found->second;
    auto vacant = std::ranges::find_if(rows, [&](const row& r) { return r.end <= begin; });
    if (vacant == rows.end()) {
      vacant = rows.insert(rows.end(), row{++last_tid, {}});
    }
    vacant->end = end;
    return vacant->tid;
  }

  void add(const trace_event& event) {
    const auto end = std::max(event.begin, event.end);
    const std::uint32_t tid = place(event.track, event.begin, end);
    begin_record();
    buffer += R"("ph":"X","tid":)";
    append_integer(buffer, tid);
    buffer += R"(,"ts":)";
    append_microseconds(buffer, event.begin - origin);
    buffer += R"(,"dur":)";
    append_microseconds(buffer, end - event.begin);
    buffer += R"(,"name":")";
    buffer += detail::json_escape(event.name);
    buffer += R"(","args":{)";
    if (event.bytes != 0) {
      buffer += R"("bytes":)";
      append_integer(buffer, event.bytes);
    }
    if (event.layer >= 0) {
      buffer += event.bytes != 0 ? R"(,"layer":)" : R"("layer":)";
      append_integer(buffer, event.layer);
    }
    buffer += "}}";
    if (buffer.size() >= buffer_bytes) {
      flush();
    }
  }

  void add_track_names() {
    std::uint32_t position = 0;
    for (const auto& [name, rows] : tracks) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        begin_record();
        buffer += R"("ph":"M","name":"thread_name","tid":)";
        append_integer(buffer, rows[i].tid);
        buffer += R"(,"args":{"name":")";
        buffer += detail::json_escape(name);
        if (i > 0) {
          buffer += " (";
          append_integer(buffer, i + 1);
          buffer += ')';
        }
        buffer += R"("}})";
        begin_record();
        buffer += R"("ph":"M","name":"thread_sort_index","tid":)";
        append_integer(buffer, rows[i].tid);
        buffer += R"(,"args":{"sort_index":)";
        append_integer(buffer, position++);
        buffer += "}}";
      }
    }
  }

  void flush() {
    if (error == 0) {
      error = write_all(fd, buffer);
    }
    buffer.clear();
  }

  void finish() {
    add_track_names();
    buffer += "\n]}\n";
    flush();
    if (::close(fd) != 0 && error == 0) {
      error = errno;
    }
    fd = -1;
  }

  const std::filesystem::path path;
  const clock::time_point origin = clock::now();
  const std::int64_t process = ::getpid();
  std::mutex mutex;
  int fd = -1;
  int error = 0;
  std::string buffer;
  std::uint64_t records = 0;
  std::uint32_t last_tid = 0;
  std::map<std::string, std::vector<row>, std::less<>> tracks;
};

trace_writer::trace_writer(const std::filesystem::path& path)
    : impl_(std::make_unique<impl>(path)) {}

trace_writer::~trace_writer() {
  try {
    close();
  } catch (const std::exception&) {
    // Documented: whoever wants to know calls close().
  }
}

void trace_writer::add(const trace_event& event) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->fd >= 0) {
    impl_->add(event);
  }
}

void trace_writer::close() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->fd < 0) {
    return;
  }
  impl_->finish();
  if (impl_->error != 0) {
    throw std::system_error(impl_->error, std::generic_category(),
                            "cannot write the trace file \"" + impl_->path.string() + '"');
  }
}

}  // namespace kvtier
