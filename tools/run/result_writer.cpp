#include "tools/run/result_writer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "tools/run/answer_measures.hpp"
#include "tools/run/output_file.hpp"

namespace kvtier::run {
namespace {

using nlohmann::ordered_json;

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

std::string dump(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void add_bounds(ordered_json& object, const answer_measures& measures) {
  const auto or_null = [](const std::optional<double>& value) {
    return value ? ordered_json(*value) : ordered_json(nullptr);
  };
  object["error_bound"] = or_null(measures.error_bound);
  if (measures.sampled) {
    object["error_bound_max"] = or_null(measures.error_bound_max);
    object["certified_fraction"] = measures.certified_fraction;
    object["error_estimate"] = or_null(measures.error_estimate);
    object["mean_shrink"] = or_null(measures.mean_shrink);
  }
}

}  // namespace

std::string logits_json(const prompt_line& line, std::span<const std::int32_t> token_ids,
                        std::span<const float> logits) {
  const auto vocab = token_ids.empty() ? 0 : logits.size() / token_ids.size();
  std::string text = fmt::format("{{\"id\":{},\"token_ids\":[{}],\"logits\":[", line.id_json,
                                 fmt::join(token_ids, ","));
  for (std::size_t row = 0; row < token_ids.size(); ++row) {
    fmt::format_to(std::back_inserter(text), "{}[{:.9g}]", row == 0 ? "" : ",",
                   fmt::join(logits.subspan(row * vocab, vocab), ","));
  }
  return text + "]}";
}

std::string error_json(const prompt_line& line, const std::string& error) {
  ordered_json object;
  object["id"] = ordered_json::parse(line.id_json);
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
  ordered_json object;
  object["id"] = ordered_json::parse(line.id_json);
  object["text"] = context.text;
  object["token_ids"] = result.tokens;
  object["prompt_tokens"] = context.prompt_tokens;
  object["shared_tokens"] = result.shared_tokens;
  object["prefill_seconds"] = result.prefill_seconds;
  object["decode_seconds"] = result.decode_seconds;
  const auto measures = measure_answers(result.rows, result.errors);
  object["attended_fraction"] = measures.attended_fraction;
  if (result.rows.keys_scored != 0) {
    object["keys_scored"] = result.rows.keys_scored;
  }
  object["peak_bytes"] = {
      {"device", result.device_peak}, {"host", result.host_peak}, {"disk", result.disk_peak}};
  add_bounds(object, measures);
  object["finish_reason"] = to_text(result.reason);
  return dump(object);
}

void result_writer::put(std::size_t index, std::string line) {
  errno = 0;
  if (!try_put(index, std::move(line))) {
    throw std::runtime_error(write_complaint(flag_, name_, errno));
  }
}

bool result_writer::try_put(std::size_t index, std::string line) {
  lines_[index] = std::move(line);
  there_[index] = true;
  const auto first = next_;
  for (; next_ < lines_.size() && there_[next_]; ++next_) {
    out_ << lines_[next_] << '\n';
    std::string().swap(lines_[next_]);
  }
  return next_ == first || out_.flush().good();
}

}  // namespace kvtier::run
