/// A step in progress: its plans, its working memory on the device, and the order of a layer's
/// work.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/kvtier.hpp"
#include "runtime/offloaded_work.hpp"
#include "runtime/runtime_state.hpp"
#include "runtime/step_plan.hpp"

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
  void begin_work(gpu::stream& order);
  void append(std::uint32_t layer, const attend_io& io);
  void fetch_queries(const attend_io& io, const staging_area& area);
  void attend_device(std::uint32_t lane, const attend_io& io);
  status attend_ring(std::uint32_t lane, const attend_io& io);
  status attend_host(std::uint32_t layer, const staging_area& area);
  status attend_host_wave(std::uint32_t lane, std::span<const shared_range> wave,
                          const staging_area& area);
  void merge(const attend_io& io, const staging_area* area);
  void merge_rows(const attend_io& io, const sequence_plan& plan, const host_query* host);
  status fail(const extent& what);
  status take_disk(extent* expected);
  void pin_host(std::span<const shared_range> ranges);
  void count_offloaded(std::uint32_t lane);
  void count_loaded(std::uint32_t lane, const shared_range& range,
                    std::span<const std::uint32_t> members);
  bool host_work(std::uint32_t layer) const;
  gpu::attend_args base_args(std::uint32_t lane, const attend_io& io) const;
  void release_plans();

  runtime::state& owner_;
  const std::shared_ptr<std::vector<sequence_plan>> plans_;  // shared with the device's callback
  std::uint32_t tokens_ = 0;
  std::vector<std::uint32_t> host_members_, ring_members_;  // plans with offloaded ranges, by way
  std::vector<host_query> host_queries_;
  std::uint32_t host_rows_ = 0;
  std::vector<lane_work> host_work_, ring_work_;  // per lane
  read_ahead reads_;
  std::uint32_t next_layer_ = 0;
  gpu::stream* order_ = nullptr;
  std::shared_ptr<gpu::event> written_;
  std::unique_ptr<gpu::event> queries_down_;
  gpu::device_buffer out_, lse_, host_sums_;
  bool failed_ = false;
  bool planned_ = true;  // plan pins are held
};

}  // namespace kvtier
