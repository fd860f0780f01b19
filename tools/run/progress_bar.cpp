#include "tools/run/progress_bar.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "tools/run/report_attempts.hpp"

namespace kvtier::run {
namespace {

constexpr std::chrono::milliseconds shortest_interval{100};
constexpr std::size_t line_width = 79;

bool can_draw() {
  const char* const terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

double rate(std::uint64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
}

}  // namespace

std::string progress_line(const batch_progress& progress, std::size_t width) {
  constexpr std::size_t cells = 20;
  const auto share = progress.prompts == 0 ? 1.0
                                           : static_cast<double>(progress.prompts_done) /
                                                 static_cast<double>(progress.prompts);
  const auto full = static_cast<std::size_t>(share * static_cast<double>(cells));
  auto line = fmt::format(
      "[{:#<{}}{:.<{}}] {}/{} prompts, prefill {}/{} ({:.0f}/s), decoded {} ({:.0f}/s)", "", full,
      "", cells - full, progress.prompts_done, progress.prompts, progress.prefilled_tokens,
      std::max(progress.prefill_tokens, progress.prefilled_tokens),
      rate(progress.prefilled_tokens, progress.prefill_seconds), progress.decoded_tokens,
      rate(progress.decoded_tokens, progress.decode_seconds));
  if (line.size() > width) {
    line.resize(width);
  }
  return line;
}

progress_bar::progress_bar(bool wanted) : active_(wanted && can_draw()) {}

progress_bar::~progress_bar() { clear(); }

void progress_bar::update(const batch_progress& progress) {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (!active_ || (drawn_ && now - drawn_at_ < shortest_interval)) {
    return;
  }
  last_ = progress_line(progress, line_width);
  write_standard_error("\r\x1b[K" + last_);
  drawn_ = true;
  drawn_at_ = now;
}

void progress_bar::message(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (drawn_) {
    write_standard_error(fmt::format("\r\x1b[K{}\n{}", text, last_));
  } else {
    write_standard_error(fmt::format("{}\n", text));
  }
}

void progress_bar::clear() {
  const std::lock_guard lock(mutex_);
  if (drawn_) {
    write_standard_error("\r\x1b[K");
    drawn_ = false;
  }
}

}  // namespace kvtier::run
