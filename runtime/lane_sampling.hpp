/// Sampled attention of one lane in one step: which offloaded tokens each query reads, reading
/// them, and the sums for the merge.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lsh/sampled_attention.hpp"
#include "lsh/token_selector.hpp"
#include "runtime/host_attention.hpp"
#include "runtime/runtime_state.hpp"
#include "runtime/staging.hpp"
#include "runtime/step_plan.hpp"
#include "runtime/tile_reads.hpp"

namespace kvtier {

/// One sequence whose offloaded ranges of the lane are sampled.
struct sampled_member {
  const sequence_plan* plan = nullptr;
  host_query query;
  const std::int16_t* window_mass = nullptr;  ///< [query heads of the layer]
};

/// What was read for one member, over its query tokens and KV heads.
struct sampled_load {
  std::uint64_t rows = 0;                   ///< [K | V] rows attended
  std::uint64_t keys_scored = 0;            ///< exact keys read to choose
  std::vector<std::uint64_t> disk_extents;  ///< numbers of the disk extents that were read
};

/// Used from one thread; work is shared by the runtime's task arena. Results do not depend on the
/// number of threads nor on when reads complete.
class lane_sampling {
 public:
  /// The members' plans and queries, `area` and `reads` must outlive it.
  lane_sampling(runtime::state& owner, std::uint32_t lane, std::span<const sampled_member> members,
                const staging_area& area, tile_reads& reads);
  ~lane_sampling();
  lane_sampling(const lane_sampling&) = delete;
  lane_sampling& operator=(const lane_sampling&) = delete;

  /// Fills the members' rows of the area: sums and, where the selector estimates, what the merge
  /// finishes. Blocks. On anything but ok `lost` is the extent that could not be read.
  status run(const extent** lost);
  /// One entry per member, after run.
  const std::vector<sampled_load>& loads() const noexcept { return loads_; }

 private:
  struct job;
  struct member_tiles;

  status wait_ready(const extent** lost);
  void make_jobs();
  status show_keys(const extent** lost);
  void choose();
  status read(const extent** lost);
  void read_host_rows();
  void count_rows();
  void read_tiles_of(std::span<extent* const> ready);
  std::vector<extent*> offloaded_to(tier where) const;
  std::vector<extent*> disk_extents() const;
  void see_extent(const extent& what);
  void finish(job& work, cpu::task_arena* helpers);
  void read_rows(job& work, cpu::task_arena* helpers);
  bool grow(job& work, std::span<const lsh::host_sums> sums, cpu::task_arena* helpers);
  void pack(const job& work, std::span<const lsh::host_sums> sums);
  template <class Body> void for_each_job(const Body& body);
  template <class Body> status take_reads(const extent** lost, const Body& body);

  runtime::state& owner_;
  const std::uint32_t lane_;
  const std::span<const sampled_member> members_;
  const staging_area& area_;
  tile_reads& reads_;
  const std::uint32_t tiles_per_extent_;
  std::vector<extent*> pinned_;  // host copies
  std::vector<member_tiles> tiles_;
  std::vector<std::unique_ptr<job>> jobs_;
  std::vector<sampled_load> loads_;
};

}  // namespace kvtier
