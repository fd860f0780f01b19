/// One query's draw by sketches, from the scores to the selection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "lsh/aligned_array.hpp"
#include "lsh/counter_random.hpp"
#include "lsh/sketch_draw.hpp"
#include "lsh/sketch_kernels.hpp"
#include "lsh/sketch_plan.hpp"
#include "lsh/sketch_query.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// Keeps the memory of finished queries for later ones: fresh pages would cost more than a scan.
/// Thread-safe.
class score_pool {
 public:
  aligned_array<std::int16_t> take(std::size_t size);
  void give_back(aligned_array<std::int16_t> scores);

 private:
  std::mutex mutex_;
  std::vector<aligned_array<std::int16_t>> free_;
};

/// What a draw needs to know besides tiles and queries.
struct sketch_setting {
  selector_config options;
  sketch_format format;
  std::uint64_t seed = 0;
  const sketch_kernels* kernels = nullptr;
  std::shared_ptr<score_pool> pool;
};

class sketch_selection final : public query_selection {
 public:
  sketch_selection(const sketch_setting& setting, const sketch_rotation& rotation,
                   std::span<const tile_entry> tiles, const selector_query& query);
  ~sketch_selection() override;
  sketch_selection(const sketch_selection&) = delete;
  sketch_selection& operator=(const sketch_selection&) = delete;

  void see(std::uint32_t position, const std::byte* const* rows, element_type element) override;
  selection choose(cpu::task_arena* helpers) override;
  bool grows() const noexcept override { return setting_.options.epsilon_ppm > 0; }
  std::optional<selection> grow(std::span<const double> factors, cpu::task_arena* helpers) override;

  /// After choose: the probabilities, int16 scores [tiles][heads][64], 65536 Pi [tiles] (0 for row
  /// tiles), and what was counted.
  const sketch_plan& plan() const noexcept { return plan_; }
  const std::int16_t* scores() const noexcept { return scores_.data(); }
  const std::vector<std::uint32_t>& tile_thresholds() const noexcept { return tile_thresholds_; }
  const score_summary& summary() const noexcept { return summary_; }

 private:
  std::size_t chunks() const noexcept;
  std::span<const tile_entry> tiles_of(std::size_t chunk) const noexcept;
  const std::int16_t* scores_of(std::size_t position) const noexcept;
  template <class Body> void for_chunks(cpu::task_arena* helpers, const Body& body) const;

  void score(cpu::task_arena* helpers);
  void count(cpu::task_arena* helpers);
  void make_plan();
  selection draw(cpu::task_arena* helpers) const;
  std::uint64_t sum_limits(const draw_limits* limits) const;
  bool rises() const noexcept {
    return setting_.options.value_slope && setting_.options.estimator == estimator_kind::shrink;
  }
  selection gather(std::span<const run_draw> runs) const;
  selection nothing() const;

  const sketch_setting& setting_;
  const sketch_kernels& kernels_;
  std::span<const tile_entry> tiles_;
  const std::int16_t* window_mass_;
  counter_random random_;
  sketch_query query_;
  aligned_array<std::int16_t> scores_;
  score_summary summary_;
  std::vector<std::int64_t> squares_;             // [tiles][heads], of whole tiles
  std::vector<const std::int16_t*> calibration_;  // scores of some row tiles
  sketch_plan plan_;
  std::vector<std::uint32_t> tile_thresholds_;
};

}  // namespace kvtier::lsh
