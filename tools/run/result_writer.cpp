#include "tools/run/result_writer.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

namespace kvtier::run {
namespace {

using json = nlohmann::ordered_json;

std::string_view to_text(finish_reason reason) {
  switch (reason) {
    case finish_reason::stop:
      return "stop";
    case finish_reason::length:
      return "length";
    case finish_reason::interrupted:
      return "interrupted";
    case finish_reason::failed:
      break;
  }
  return "failed";
}

std::string dump(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string error_json(const prompt_line& line, const std::string& error) {
  json object;
  object["id"] = json::parse(line.id_json);
  object["error"] = error;
  object["line"] = line.line;
  return dump(object);
}

std::string result_json(const prompt_line& line, const batch_result& result,
                        const result_context& context) {
  if (result.reason == finish_reason::failed) {
    return error_json(line, result.error);
  }
  if (result.reason == finish_reason::interrupted && result.tokens.empty()) {
    return error_json(line, "interrupted before the first new token");
  }
  json object;
  object["id"] = json::parse(line.id_json);
  object["text"] = context.text;
  object["token_ids"] = result.tokens;
  object["prompt_tokens"] = context.prompt_tokens;
  object["shared_tokens"] = result.shared_tokens;
  object["prefill_seconds"] = result.prefill_seconds;
  object["decode_seconds"] = result.decode_seconds;
  object["attended_fraction"] =
      result.rows.offloaded == 0
          ? 1.0
          : static_cast<double>(result.rows.loaded) / static_cast<double>(result.rows.offloaded);
  object["peak_bytes"] = {
      {"device", result.device_peak}, {"host", result.host_peak}, {"disk", result.disk_peak}};
  object["error_bound"] = context.exact ? json(0.0) : json(nullptr);
  object["finish_reason"] = to_text(result.reason);
  return dump(object);
}

void result_writer::put(std::size_t index, std::string line) {
  lines_[index] = std::move(line);
  there_[index] = true;
  const auto first = next_;
  for (; next_ < lines_.size() && there_[next_]; ++next_) {
    out_ << lines_[next_] << '\n';
    std::string().swap(lines_[next_]);
  }
  if (next_ != first && !out_.flush()) {
    throw std::runtime_error(
        fmt::format("--output: cannot write '{}'; check that the disk has room", name_));
  }
}

}  // namespace kvtier::run
