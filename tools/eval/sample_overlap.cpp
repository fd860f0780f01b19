#include "tools/eval/sample_overlap.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "tools/eval/mean_of.hpp"
#include "tools/eval/method_run.hpp"

namespace kvtier::eval {
namespace {

/// Units of `now` that `before` holds; both ascending.
std::size_t common(const std::vector<std::uint32_t>& now,
                   const std::vector<std::uint32_t>& before) {
  return static_cast<std::size_t>(std::count_if(now.begin(), now.end(), [&](std::uint32_t unit) {
    return std::binary_search(before.begin(), before.end(), unit);
  }));
}

std::vector<std::uint32_t> joined(const std::vector<std::uint32_t>& a,
                                  const std::vector<std::uint32_t>& b) {
  std::vector<std::uint32_t> both;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

/// How much of each draw earlier steps have read.
class overlap_sums {
 public:
  void add(const std::vector<query_record>& steps, std::size_t seed) {
    for (std::size_t step = memory; step < steps.size(); ++step) {
      const draw_outcome& now = steps[step].draws()[seed];
      const draw_outcome& last = steps[step - 1].draws()[seed];
      std::vector<std::uint32_t> rows, tiles;
      for (std::size_t before = step - memory; before < step; ++before) {
        rows = joined(rows, steps[before].draws()[seed].rows);
        tiles = joined(tiles, steps[before].draws()[seed].tiles);
      }
      const auto units = static_cast<double>(now.rows.size() + now.tiles.size());
      const auto kept = common(now.rows, last.rows) + common(now.tiles, last.tiles);
      const std::size_t known_tiles = common(now.tiles, tiles);
      const std::size_t known = common(now.rows, rows) + known_tiles;
      if (units > 0) {
        overlap_.add(static_cast<double>(kept) / units);
        overlap8_.add(static_cast<double>(known) / units);
      }
      new_tiles_.add(static_cast<double>(now.tiles.size() - known_tiles));
    }
  }

  sample_overlap result() const {
    return {overlap_.value(), overlap8_.value(), new_tiles_.value()};
  }

 private:
  static constexpr std::size_t memory = 8;
  mean_of overlap_, overlap8_, new_tiles_;
};

}  // namespace

sample_overlap measure_overlap(const judged_data& data,
                               const std::vector<std::vector<query_record>>& records) {
  overlap_sums sums;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const bool successive = are_successive(data.cases()[i].stored->data());
    for (std::size_t seed = 0; successive && seed < records[i].front().draws().size(); ++seed) {
      sums.add(records[i], seed);
    }
  }
  return sums.result();
}

}  // namespace kvtier::eval
