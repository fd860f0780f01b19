#include "tools/eval/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tools/eval/driven_selector.hpp"
#include "tools/eval/ideal_vattention.hpp"
#include "tools/eval/mean_of.hpp"
#include "tools/eval/method_run.hpp"
#include "tools/eval/sample_overlap.hpp"

namespace kvtier::eval {
namespace {

/// What the draws of some heads come to.
class head_sums {
 public:
  void add(const head_outcome& one) {
    error_.add(one.error);
    certified_.add(one.certified ? 1.0 : 0.0);
    missed_.add(one.missed ? 1.0 : 0.0);
    if (std::isnan(one.bound)) {
      return;
    }
    constexpr double rounding = 1e-5;  // of fp32 sums: a bound of 0 says that all was read
    const double held = one.error <= one.bound + rounding ? 1.0 : 0.0;
    bound_.add(one.bound);
    coverage_.add(held);
    if (one.certified) {
      certified_coverage_.add(held);
    }
  }

  void write(method_errors& to) const {
    to.mean_error = error_.value();
    to.bound = bound_.value();
    to.coverage = coverage_.value();
    to.certified = certified_.value();
    to.certified_coverage = certified_coverage_.value();
    to.top1_missed = missed_.value();
  }
  void write(head_errors& to) const {
    to.mean_error = error_.value();
    to.mean_bound = bound_.value();
    to.coverage = coverage_.value();
    to.certified = certified_.value();
  }

 private:
  mean_of error_, bound_, coverage_, certified_, certified_coverage_, missed_;
};

double quantile(std::vector<double> values, double share) {
  const auto at = std::lround(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

void summarise(const judged_data& data, const method_run& run, method_errors& to) {
  head_sums all;
  mean_of rows, tiles, rounds, bias;
  std::vector<double> errors;
  for (std::size_t i = 0; i < data.cases().size(); ++i) {
    const head_case& from = data.cases()[i].stored->data();
    std::vector<head_sums> heads(from.heads);
    mean_of head_rows;
    for (std::size_t q = 0; q < run.records()[i].size(); ++q) {
      const query_record& record = run.records()[i][q];
      for (const draw_outcome& draw : record.draws()) {
        rows.add(draw.rows_fraction);
        head_rows.add(draw.rows_fraction);
        tiles.add(draw.disk_tiles);
        rounds.add(draw.rounds);
        for (std::size_t h = 0; h < draw.heads.size(); ++h) {
          all.add(draw.heads[h]);
          heads[h].add(draw.heads[h]);
          errors.push_back(draw.heads[h].error);
        }
      }
      for (const double distance : record.bias(data.cases()[i].queries[q])) {
        bias.add(distance);
      }
    }
    for (std::uint32_t h = 0; h < from.heads; ++h) {
      head_errors one;
      one.name =
          std::to_string(i) + "/kv" + std::to_string(from.kv_head) + "/h" + std::to_string(h);
      heads[h].write(one);
      one.rows_fraction = head_rows.value();
      to.heads.push_back(one);
    }
  }
  all.write(to);
  to.rows_fraction = rows.value();
  to.disk_tiles = tiles.value();
  to.rounds = rounds.value();
  to.bias = bias.value();
  to.p50_error = quantile(errors, .5);
  to.p95_error = quantile(errors, .95);
  to.max_error = *std::max_element(errors.begin(), errors.end());
}

/// With epsilon: how often it was met, and what it would cost otherwise.
void judge_target(const judged_data& data, const method_run& run, double epsilon,
                  cpu::task_arena& arena, method_errors& to) {
  to.met = to.vattention_rows = not_known;
  if (epsilon <= 0.0) {
    return;
  }
  mean_of met, rows;
  std::vector<std::pair<const stored_case*, const judged_query*>> queries;
  for (std::size_t i = 0; i < data.cases().size(); ++i) {
    for (std::size_t q = 0; q < data.cases()[i].queries.size(); ++q) {
      queries.emplace_back(data.cases()[i].stored.get(), &data.cases()[i].queries[q]);
      for (const draw_outcome& draw : run.records()[i][q].draws()) {
        for (const head_outcome& head : draw.heads) {
          met.add(head.error <= epsilon ? 1.0 : 0.0);
        }
      }
    }
  }
  std::vector<double> needed(queries.size());
  arena.parallel_for(queries.size(), [&](std::size_t i) {
    needed[i] = ideal_vattention_rows(*queries[i].first, *queries[i].second, epsilon);
  });
  for (const double share : needed) {
    rows.add(share);
  }
  to.met = met.value();
  to.vattention_rows = rows.value();
}

}  // namespace

method_errors evaluate(const judged_data& data, selector_config options, double budget,
                       const evaluation_setting& setting, cpu::task_arena& arena) {
  if (setting.seeds == 0 || setting.most_indexes == 0) {
    throw std::invalid_argument("eval: 0 seeds draw nothing; give at least 1");
  }
  if (options.kind == selector_kind::full || options.kind == selector_kind::none) {
    throw std::invalid_argument("eval: selector " + to_string(options) +
                                " chooses nothing; give one that does");
  }
  const std::string asked = to_string(options);
  const auto rows_of = [&](const selector_config& tried) {
    method_run run(data, tried, setting, arena);
    run.answer_all(1);
    mean_of rows;
    for (const auto& queries : run.records()) {
      for (const query_record& record : queries) {
        rows.add(record.draws().front().rows_fraction);
      }
    }
    return rows.value();
  };
  if (setting.drive) {
    options = driven_to(options, budget, rows_of);
  }
  method_errors made;
  made.data = data.name();
  made.tokens = data.tokens();
  made.asked = asked;
  made.selector = to_string(options);
  made.budget = budget;
  made.seeds = !draws(options.kind)        ? 1
               : draws_index(options.kind) ? std::min(setting.seeds, setting.most_indexes)
                                           : setting.seeds;
  method_run run(data, options, setting, arena);
  run.answer_all(made.seeds);
  std::uint64_t tokens = 0;
  for (const judged_data::judged_case& one : data.cases()) {
    tokens += lsh::tile_tokens * one.stored->tiles();
  }
  made.index_bytes_per_token = static_cast<double>(run.index_bytes()) / static_cast<double>(tokens);
  made.build_us_per_token = run.build_seconds() * 1e6 / static_cast<double>(tokens);
  if (options.kind == selector_kind::faiss) {  // the index that counts is built when it is asked
    made.index_bytes_per_token = made.build_us_per_token = not_known;
  }
  summarise(data, run, made);
  const sample_overlap overlap = measure_overlap(data, run.records());
  made.overlap = overlap.last;
  made.overlap8 = overlap.recent;
  made.new_tiles = overlap.new_tiles;
  judge_target(data, run, options.epsilon_ppm / 1e6, arena, made);
  return made;
}

}  // namespace kvtier::eval
