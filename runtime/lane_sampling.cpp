#include "runtime/lane_sampling.hpp"

#include <algorithm>
#include <chrono>
#include <string>

#include "lsh/adaptive_budget.hpp"
#include "runtime/packed_sums.hpp"
#include "runtime/tile_rows.hpp"

namespace kvtier {
namespace {

/// Adds a span to the trace, if there is one, when it ends.
class traced {
 public:
  traced(const runtime::state& owner, std::uint32_t lane, const char* name)
      : owner_(owner), lane_(lane), name_(name), begin_(std::chrono::steady_clock::now()) {}
  ~traced() {
    if (owner_.options.trace != nullptr) {
      owner_.options.trace->add({.track = "host/attention",
                                 .name = name_,
                                 .begin = begin_,
                                 .end = std::chrono::steady_clock::now(),
                                 .bytes = 0,
                                 .layer = owner_.sizes.layer_of(lane_)});
    }
  }
  traced(const traced&) = delete;
  traced& operator=(const traced&) = delete;

 private:
  const runtime::state& owner_;
  const std::uint32_t lane_;
  const char* const name_;
  const std::chrono::steady_clock::time_point begin_;
};

/// The place of `what` among `ranges`, which ascend by token; their size if it is not there.
std::size_t place_of(const std::vector<offloaded_range>& ranges, const extent& what) {
  const auto found = std::lower_bound(
      ranges.begin(), ranges.end(), what.first_token,
      [](const offloaded_range& range, std::uint64_t token) { return range.first_token < token; });
  const bool there = found != ranges.end() && found->what == &what;
  return there ? static_cast<std::size_t>(found - ranges.begin()) : ranges.size();
}

bool unbiased(const runtime::state& owner) {
  return owner.options.selector.estimator == estimator_kind::ht;
}

/// Sorted by age, without repetitions.
std::vector<extent*> each_once(std::vector<extent*> list) {
  std::sort(list.begin(), list.end(),
            [](const extent* a, const extent* b) { return a->id < b->id; });
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

}  // namespace

/// A member's offloaded tiles, per KV head of the head group.
struct lane_sampling::member_tiles {
  std::vector<std::vector<lsh::tile_entry>> heads;
};

/// One query token of one KV head.
struct lane_sampling::job {
  std::uint32_t member = 0;
  std::uint32_t head = 0;     // KV head of the head group
  std::size_t first_row = 0;  // of the staging area: the group's query heads
  lsh::selector_query query;
  std::unique_ptr<lsh::query_selection> choosing;
  lsh::selection chosen;
  std::vector<const std::byte*> rows;
  std::unique_ptr<lsh::sampled_attention> reading;
};

lane_sampling::lane_sampling(runtime::state& owner, std::uint32_t lane,
                             std::span<const sampled_member> members, const staging_area& area,
                             tile_reads& reads)
    : owner_(owner),
      lane_(lane),
      members_(members),
      area_(area),
      reads_(reads),
      tiles_per_extent_(owner.sizes.extent_tokens / lsh::tile_tokens),
      loads_(members.size()) {
  pinned_ = offloaded_to(tier::host);
  const auto lock = owner_.tiers->lock();
  for (extent* what : pinned_) {
    owner_.tiers->pin(lock, *what, tier::host);
  }
}

/// The members' offloaded extents of one home, each once: forks share them.
std::vector<extent*> lane_sampling::offloaded_to(tier where) const {
  std::vector<extent*> list;
  for (const sampled_member& member : members_) {
    for (const offloaded_range& range : member.plan->lanes[lane_].offloaded) {
      if (range.where == where) {
        list.push_back(range.what);
      }
    }
  }
  return each_once(std::move(list));
}

lane_sampling::~lane_sampling() {
  reads_.drop();
  const auto lock = owner_.tiers->lock();
  for (extent* what : pinned_) {
    owner_.tiers->unpin(lock, *what, tier::host);
  }
}

status lane_sampling::run(const extent** lost) {
  if (const status ready = wait_ready(lost); ready != status::ok) {
    return ready;
  }
  make_jobs();
  if (owner_.selector->reads_keys()) {
    if (const status seen = show_keys(lost); seen != status::ok) {
      return seen;
    }
  }
  choose();
  if (const status outcome = read(lost); outcome != status::ok) {
    return outcome;
  }
  const traced span(owner_, lane_, "finish");
  for_each_job([this](job& work, cpu::task_arena* helpers) { finish(work, helpers); });
  count_rows();
  return status::ok;
}

/// Token indexes of everything, and the host copies of what lies in host memory.
status lane_sampling::wait_ready(const extent** lost) {
  std::vector<extent*> disk = offloaded_to(tier::disk);
  const bool indexed = owner_.index != nullptr && owner_.index->keeps(lane_);
  auto lock = owner_.tiers->lock();
  for (const auto* list : {&pinned_, &disk}) {
    for (extent* what : *list) {
      status outcome = indexed ? owner_.tiers->wait_index(lock, *what) : status::ok;
      if (outcome == status::ok && list == &pinned_) {
        outcome = owner_.tiers->wait_host(lock, *what);
      }
      if (outcome != status::ok) {
        *lost = what;
        return outcome;
      }
    }
  }
  return status::ok;
}

void lane_sampling::make_jobs() {
  const geometry& sizes = owner_.sizes;
  const kv_shape& shape = sizes.shape;
  const std::uint32_t first_head = sizes.slice_of(lane_).kv_head_first;
  const bool indexed = owner_.index != nullptr && owner_.index->keeps(lane_);
  for (std::uint32_t m = 0; m < members_.size(); ++m) {
    const sampled_member& member = members_[m];
    member_tiles& mine = tiles_.emplace_back();
    mine.heads.resize(sizes.group_heads);
    for (std::uint32_t head = 0; head < sizes.group_heads; ++head) {
      for (const offloaded_range& range : member.plan->lanes[lane_].offloaded) {
        for (std::uint32_t tile = 0; tile < tiles_per_extent_; ++tile) {
          mine.heads[head].push_back(
              {.index = indexed ? owner_.index->tile(*range.what, head, tile) : nullptr,
               .number = range.first_token / lsh::tile_tokens + tile,
               .sequence = range.what->sequence,
               .whole = range.where == tier::disk,
               .content = range.what->id});
        }
      }
    }
    for (std::uint32_t token = 0; token < member.query.tokens; ++token) {
      for (std::uint32_t head = 0; head < sizes.group_heads; ++head) {
        auto work = std::make_unique<job>();
        const std::size_t query_head = std::size_t{first_head + head} * shape.group();
        work->member = m;
        work->head = head;
        work->first_row = member.query.first_row + token * shape.query_heads + query_head;
        work->query = {.values = area_.query_floats + work->first_row * shape.head_dim,
                       .heads = shape.group(),
                       .head_dim = shape.head_dim,
                       .window_mass = member.window_mass + query_head,
                       .step = member.query.position + token,
                       .layer = sizes.layer_of(lane_),
                       .kv_head = first_head + head};
        jobs_.push_back(std::move(work));
      }
    }
  }
  for (const auto& work : jobs_) {
    work->choosing = owner_.selector->begin(tiles_[work->member].heads[work->head], work->query);
  }
}

/// Many jobs: one thread each. Few: one after the other, each with all threads.
template <class Body> void lane_sampling::for_each_job(const Body& body) {
  if (jobs_.size() >= owner_.arena.threads()) {
    owner_.arena.parallel_for(jobs_.size(), [&](std::size_t i) { body(*jobs_[i], nullptr); });
    return;
  }
  for (const auto& work : jobs_) {
    body(*work, &owner_.arena);
  }
}

/// Hands what was requested to `body` as it arrives.
template <class Body> status lane_sampling::take_reads(const extent** lost, const Body& body) {
  for (std::vector<extent*> ready;;) {
    if (const status outcome = reads_.next(&ready); outcome != status::ok) {
      *lost = ready.front();
      return outcome;
    }
    if (ready.empty()) {
      return status::ok;
    }
    body(ready);
  }
}

/// Every key of every tile, host first, then the disk from end to end.
status lane_sampling::show_keys(const extent** lost) {
  const traced span(owner_, lane_, "score keys");
  for (const extent* what : pinned_) {
    see_extent(*what);
  }
  reads_.request(offloaded_to(tier::disk));
  return take_reads(lost, [this](std::span<extent* const> ready) {
    for (const extent* what : ready) {
      see_extent(*what);
    }
  });
}

void lane_sampling::see_extent(const extent& what) {
  const geometry& sizes = owner_.sizes;
  owner_.arena.parallel_for(jobs_.size(), [&](std::size_t i) {
    job& work = *jobs_[i];
    const auto& ranges = members_[work.member].plan->lanes[lane_].offloaded;
    const std::size_t place = place_of(ranges, what);
    if (place == ranges.size()) {
      return;
    }
    const auto first = static_cast<std::uint32_t>(place) * tiles_per_extent_;
    for (std::uint32_t tile = 0; tile < tiles_per_extent_; ++tile) {
      const tile_row_pointers rows = host_tile(sizes, owner_.memory, what, work.head, tile);
      work.choosing->see(first + tile, rows.data(), sizes.shape.element);
    }
  });
}

void lane_sampling::choose() {
  const traced span(owner_, lane_, "select");
  for_each_job([this](job& work, cpu::task_arena* helpers) {
    work.chosen = work.choosing->choose(helpers);
    if (!work.choosing->grows()) {
      work.choosing.reset();
    }
    work.reading = std::make_unique<lsh::sampled_attention>(
        work.chosen, tiles_[work.member].heads[work.head], work.query, owner_.sizes.shape.element);
  });
  const bool scored = owner_.selector->reads_keys();
  for (const auto& work : jobs_) {
    sampled_load& load = loads_[work->member];
    load.keys_scored +=
        scored ? tiles_[work->member].heads[work->head].size() * lsh::tile_tokens : 0;
    for (const std::uint32_t position : work->chosen.tiles) {
      const auto& ranges = members_[work->member].plan->lanes[lane_].offloaded;
      load.disk_extents.push_back(ranges[position / tiles_per_extent_].first_token /
                                  owner_.sizes.extent_tokens);
    }
  }
  for (sampled_load& load : loads_) {
    std::sort(load.disk_extents.begin(), load.disk_extents.end());
    load.disk_extents.erase(std::unique(load.disk_extents.begin(), load.disk_extents.end()),
                            load.disk_extents.end());
  }
}

/// The disk extents that some job chose a tile of, oldest first.
std::vector<extent*> lane_sampling::disk_extents() const {
  std::vector<extent*> needed;
  for (const auto& work : jobs_) {
    const auto& ranges = members_[work->member].plan->lanes[lane_].offloaded;
    for (const std::uint32_t position : work->chosen.tiles) {
      needed.push_back(ranges[position / tiles_per_extent_].what);
    }
  }
  return each_once(std::move(needed));
}

/// Disk reads run while the host's rows are gathered.
status lane_sampling::read(const extent** lost) {
  reads_.request(disk_extents());
  read_host_rows();
  return take_reads(lost, [this](std::span<extent* const> ready) { read_tiles_of(ready); });
}

void lane_sampling::read_host_rows() {
  const traced span(owner_, lane_, "attend rows");
  for_each_job([this](job& work, cpu::task_arena* helpers) { read_rows(work, helpers); });
}

void lane_sampling::read_rows(job& work, cpu::task_arena* helpers) {
  const auto& ranges = members_[work.member].plan->lanes[lane_].offloaded;
  work.rows.clear();
  work.rows.reserve(work.chosen.rows.size());
  for (const std::uint32_t row : work.chosen.rows) {
    work.rows.push_back(host_row(owner_.sizes, owner_.memory,
                                 *ranges[row / owner_.sizes.extent_tokens].what, work.head,
                                 row % owner_.sizes.extent_tokens));
  }
  work.reading->read_rows(work.rows.data(), helpers);
}

void lane_sampling::read_tiles_of(std::span<extent* const> ready) {
  const traced span(owner_, lane_, "attend tiles");
  struct tile_read {
    job* work;
    std::size_t number;
    const extent* what;
    std::uint32_t tile;
  };
  std::vector<tile_read> reads;
  for (const auto& work : jobs_) {
    const auto& ranges = members_[work->member].plan->lanes[lane_].offloaded;
    for (std::size_t i = 0; i < work->chosen.tiles.size(); ++i) {
      const std::uint32_t position = work->chosen.tiles[i];
      const extent* what = ranges[position / tiles_per_extent_].what;
      if (std::find(ready.begin(), ready.end(), what) != ready.end()) {
        reads.push_back({work.get(), i, what, position % tiles_per_extent_});
      }
    }
  }
  owner_.arena.parallel_for(reads.size(), [&](std::size_t i) {
    const tile_read& one = reads[i];
    const tile_row_pointers rows =
        host_tile(owner_.sizes, owner_.memory, *one.what, one.work->head, one.tile);
    one.work->reading->read_tile(one.number, rows.data());
  });
}

/// Reads on where epsilon asks for it; disk tiles stay as they are.
void lane_sampling::finish(job& work, cpu::task_arena* helpers) {
  std::vector<lsh::host_sums> sums = work.reading->finish(helpers);
  for (int round = 0; round < lsh::growth_rounds && grow(work, sums, helpers); ++round) {
    read_rows(work, helpers);
    sums = work.reading->finish(helpers);
  }
  pack(work, sums);
  work.choosing.reset();
}

bool lane_sampling::grow(job& work, std::span<const lsh::host_sums> sums,
                         cpu::task_arena* helpers) {
  if (work.choosing == nullptr || !work.choosing->grows()) {
    return false;
  }
  std::vector<float> bounds;
  for (std::size_t g = 0; g < sums.size(); ++g) {
    bounds.push_back(host_error_bound(sums[g], work.query.window_mass[g], unbiased(owner_)));
  }
  const double epsilon = owner_.options.selector.epsilon_ppm / 1e6;
  const std::vector<double> factors = lsh::growth_factors(bounds, epsilon);
  auto grown = factors.empty() ? std::nullopt : work.choosing->grow(factors, helpers);
  if (!grown.has_value()) {
    return false;
  }
  work.chosen = std::move(*grown);
  return true;
}

void lane_sampling::count_rows() {
  for (const auto& work : jobs_) {
    loads_[work->member].rows +=
        work->chosen.rows.size() + work->chosen.tiles.size() * lsh::tile_tokens;
  }
}

void lane_sampling::pack(const job& work, std::span<const lsh::host_sums> sums) {
  const std::size_t dim = owner_.sizes.shape.head_dim;
  for (std::size_t g = 0; g < sums.size(); ++g) {
    const std::size_t row = work.first_row + g;
    const bool coarse = !work.chosen.coarse.empty() && work.chosen.coarse[g] != 0;
    const bool estimates = area_.scalars != nullptr;
    pack_sums(sums[g], coarse,
              {.scale = area_.sums.scale + row,
               .den = area_.sums.den + row,
               .num = area_.sums.num + row * dim,
               .scalars = estimates ? area_.scalars + row : nullptr,
               .correction = estimates ? area_.correction + row * dim : nullptr,
               .cross = estimates ? area_.cross + row * dim : nullptr});
  }
}

}  // namespace kvtier
