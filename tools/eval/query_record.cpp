#include "tools/eval/query_record.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvtier::eval {
namespace {

/// |factor * from - exact| / |exact|
template <class Value>
double distance(const std::vector<Value>& from, double factor, const std::vector<double>& exact) {
  double apart = 0.0, size = 0.0;
  for (std::size_t d = 0; d < exact.size(); ++d) {
    const double difference = factor * static_cast<double>(from[d]) - exact[d];
    apart += difference * difference;
    size += exact[d] * exact[d];
  }
  return std::sqrt(apart / std::max(size, 1e-300));
}

}  // namespace

void query_record::add(const sampled_answer& given, const judged_query& judged, bool keep) {
  draw_outcome made;
  sums_.resize(given.o.size());
  for (std::size_t head = 0; head < given.o.size(); ++head) {
    const std::vector<float>& o = given.o[head];
    const std::size_t heaviest = judged.heaviest[head];
    made.heads.push_back({.error = distance(o, 1.0, judged.exact[head].o),
                          .bound = double{given.reports[head].error_bound},
                          .certified = given.reports[head].certified != 0,
                          .missed = heaviest != SIZE_MAX && !given.has_read(heaviest)});
    sums_[head].resize(o.size(), 0.0);
    std::transform(o.begin(), o.end(), sums_[head].begin(), sums_[head].begin(),
                   [](float x, double sum) { return sum + double{x}; });
  }
  made.rows_fraction =
      static_cast<double>(given.rows_read()) / static_cast<double>(judged.tiles * lsh::tile_tokens);
  made.disk_tiles = static_cast<double>(given.tiles.size());
  made.rounds = given.rounds;
  if (keep) {
    made.rows = given.rows;
    made.tiles = given.tiles;
  }
  draws_.push_back(std::move(made));
}

std::vector<double> query_record::bias(const judged_query& judged) const {
  std::vector<double> all;
  for (std::size_t head = 0; head < sums_.size(); ++head) {
    all.push_back(
        distance(sums_[head], 1.0 / static_cast<double>(draws_.size()), judged.exact[head].o));
  }
  return all;
}

}  // namespace kvtier::eval
