/// A step in progress: its plans, its working memory on the device, and the order of a layer's
/// work. step_state.cpp is the order, step_host.cpp what is attended off the device,
/// step_merge.cpp what becomes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/kvtier.hpp"
#include "runtime/lane_sampling.hpp"
#include "runtime/offloaded_work.hpp"
#include "runtime/runtime_state.hpp"
#include "runtime/step_plan.hpp"
#include "runtime/tile_reads.hpp"

namespace kvtier {

/// Used from the step's thread. Holds the plans' pins: plan pins until `finish` or destruction,
/// device pins until the device has done all work of the step.
struct step::state {
  state(runtime::state& owner, std::vector<sequence_plan> plans);
  ~state();
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  status attend(std::uint32_t layer, const attend_io& io, gpu::stream& order);
  status end();

  std::optional<lost_error> lost;

 private:
  /// A sequence with rows in the staging area, and how its lanes use them.
  struct staged_member {
    host_query query;
    bool exact = false;    ///< lanes with exact offloaded ranges are attended by the host
    bool sampled = false;  ///< some lane is sampled
    std::vector<std::int16_t> window_mass;  ///< sampled: [layers][query heads]
  };

  // The order of work.
  void stage_members();
  void collect_lanes();
  void begin_work(gpu::stream& order);
  status attend_layer(std::uint32_t layer, const attend_io& io, const staging_area* area);
  void append(std::uint32_t layer, const attend_io& io);
  void attend_device(std::uint32_t lane, const attend_io& io);
  gpu::attend_args base_args(std::uint32_t lane, const attend_io& io) const;
  status fail(const extent& what);
  void mark_written(const sequence_plan& plan);
  void release_plans();

  // Off the device.
  /// Whether some lane of the layer has offloaded ranges that are attended this way.
  bool offloads(const sequence_plan& plan, std::uint32_t layer, attend_mode mode) const;
  bool host_work(std::uint32_t layer) const;
  void fetch_queries(const attend_io& io, const staging_area& area);
  status attend_ring(std::uint32_t lane, const attend_io& io);
  status take_for_ring(std::uint32_t lane, const shared_range& item, bool on_disk);
  status attend_host(std::uint32_t layer, const staging_area& area);
  status attend_host_lane(std::uint32_t lane, const staging_area& area);
  status take_wave(std::span<const shared_range> items);
  status attend_host_wave(std::uint32_t lane, std::span<const shared_range> wave,
                          const staging_area& area);
  status attend_sampled(std::uint32_t lane, const staging_area& area);
  void prefetch_sampled(std::uint32_t first_layer);
  status take_disk(extent* expected);
  void pin_host(std::span<const shared_range> ranges);
  bool counted(const sequence_plan& plan) const;
  void count_offloaded(std::uint32_t lane);
  void count_loaded(std::uint32_t lane, const shared_range& range,
                    std::span<const std::uint32_t> members);

  // Merge and reports.
  void merge(std::uint32_t layer, const attend_io& io, const staging_area* area);
  void merge_rows(std::uint32_t layer, const attend_io& io, const sequence_plan& plan,
                  const staged_member* staged);
  void send_sums(const staging_area& area);
  void fetch_window_lse(std::uint32_t layer, const staging_area& area);
  void fetch_reports(std::uint32_t layer, const attend_io& io, const staging_area& area);
  gpu::row_report* report_rows(const attend_io& io, const sequence_plan& plan) const;
  void return_area(std::uint32_t layer, const staging_area& area, bool complete);
  bool estimates() const;
  /// Byte offsets inside host_sums_; scales come first.
  struct sums_places {
    std::size_t den = 0, num = 0, scalars = 0, correction = 0, cross = 0, end = 0;
  };
  static sums_places sums_layout(std::uint32_t head_dim, std::uint32_t rows);

  runtime::state& owner_;
  const std::shared_ptr<std::vector<sequence_plan>> plans_;  // shared with the device's callback
  std::uint32_t tokens_ = 0;
  std::vector<staged_member> staged_;
  std::vector<std::uint32_t> ring_members_;  // plans whose exact ranges are streamed
  std::vector<host_query> exact_queries_;    // of staged members with exact ranges
  std::uint32_t host_rows_ = 0;
  std::vector<lane_work> host_work_, ring_work_;  // per lane
  read_ahead reads_;
  tile_reads sampled_reads_;
  std::uint32_t next_layer_ = 0;
  gpu::stream* order_ = nullptr;
  std::shared_ptr<gpu::event> written_;
  std::unique_ptr<gpu::event> queries_down_;
  gpu::device_buffer out_, lse_, host_sums_, reports_;
  bool failed_ = false;
  bool planned_ = true;  // plan pins are held
};

}  // namespace kvtier
