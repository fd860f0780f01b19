#include "tools/eval/results_json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

namespace kvtier::eval {
namespace {

nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json to_json(const head_errors& head) {
  return {{"head", head.name},
          {"rows_fraction", number(head.rows_fraction)},
          {"mean_error", number(head.mean_error)},
          {"bound", number(head.mean_bound)},
          {"coverage", number(head.coverage)},
          {"certified", number(head.certified)}};
}

nlohmann::ordered_json to_json(const method_errors& one) {
  nlohmann::ordered_json made = {
      {"data", one.data},
      {"tokens", one.tokens},
      {"asked", one.asked},
      {"asked_tokens", one.asked_tokens},
      {"selector", one.selector},
      {"budget", number(one.budget)},
      {"rows_fraction", number(one.rows_fraction)},
      {"mean_error", number(one.mean_error)},
      {"p50_error", number(one.p50_error)},
      {"p95_error", number(one.p95_error)},
      {"max_error", number(one.max_error)},
      {"bias", number(one.bias)},
      {"coverage", number(one.coverage)},
      {"bound", number(one.bound)},
      {"certified", number(one.certified)},
      {"certified_coverage", number(one.certified_coverage)},
      {"top1_missed", number(one.top1_missed)},
      {"disk_tiles", number(one.disk_tiles)},
      {"rounds", number(one.rounds)},
      {"met", number(one.met)},
      {"vattention_rows", number(one.vattention_rows)},
      {"overlap", number(one.overlap)},
      {"overlap8", number(one.overlap8)},
      {"new_tiles", number(one.new_tiles)},
      {"index_bytes_per_token", number(one.index_bytes_per_token)},
      {"build_us_per_token", number(one.build_us_per_token)},
      {"seeds", one.seeds},
      {"heads", nlohmann::ordered_json::array()},
  };
  for (const head_errors& head : one.heads) {
    made["heads"].push_back(to_json(head));
  }
  return made;
}

}  // namespace

void write_json(std::span<const method_errors> results, std::ostream& to) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const method_errors& one : results) {
    list.push_back(to_json(one));
  }
  to << list.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

}  // namespace kvtier::eval
