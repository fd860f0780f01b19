#include "runtime/prefill_ring.hpp"

#include <algorithm>
#include <utility>

namespace kvtier {

std::uint64_t prefill_ring::bytes(const geometry& sizes, std::uint32_t buffers,
                                  std::uint32_t blocks_per_buffer) {
  const std::uint32_t extents = std::max(1u, blocks_per_buffer / sizes.blocks_per_extent);
  return std::uint64_t{buffers} * extents * sizes.blocks_per_extent * sizes.block_bytes;
}

prefill_ring::prefill_ring(const geometry& sizes, const memory_tiers& memory, gpu::device& device,
                           std::uint32_t buffers, std::uint32_t blocks_per_buffer, notifier notify)
    : sizes_(sizes),
      memory_(memory),
      device_(device),
      extents_per_buffer_(std::max(1u, blocks_per_buffer / sizes.blocks_per_extent)),
      notify_(std::move(notify)),
      copies_(device.make_stream("device/ring copies")) {
  memory_block_ =
      device_.allocate(bytes(sizes, buffers, blocks_per_buffer), gpu::memory_use::kv, *copies_);
  copies_->synchronize();
  const std::size_t stride = memory_block_.size() / buffers;
  for (std::uint32_t i = 0; i < buffers; ++i) {
    buffers_.push_back({.data = memory_block_.data() + i * stride,
                        .full = device_.make_event(),
                        .free = device_.make_event()});
  }
}

status prefill_ring::stream_through(std::uint32_t lane, const ring_query& query, const source& next,
                                    const finished& done, gpu::stream& compute,
                                    std::uint64_t* copied) {
  const std::lock_guard guard(mutex_);
  const std::size_t extent_bytes = sizes_.blocks_per_extent * sizes_.block_bytes;
  for (;;) {
    const buffer& target = buffers_[next_ % buffers_.size()];
    std::vector<const shared_range*> batch;
    status outcome = status::ok;
    while (batch.size() < extents_per_buffer_) {
      const shared_range* item = nullptr;
      outcome = next(&item);
      if (outcome != status::ok || item == nullptr) {
        break;
      }
      if (batch.empty()) {
        device_.wait(*copies_, *target.free);
      }
      std::byte* to = target.data + batch.size() * extent_bytes;
      for (const slot& held : item->range.what->host.slots) {
        device_.copy(to, memory_.host(held), sizes_.block_bytes, gpu::copy_kind::host_to_device,
                     *copies_);
        to += sizes_.block_bytes;
      }
      *copied += extent_bytes;
      notify_(*copies_, [done, what = item->range.what] { done(what); });
      batch.push_back(item);
    }
    if (batch.empty() || outcome != status::ok) {
      return outcome;
    }
    device_.record(*target.full, *copies_);
    device_.wait(compute, *target.full);
    attend_batch(lane, query, batch, target, compute);
    device_.record(*target.free, compute);
    ++next_;
  }
}

void prefill_ring::attend_batch(std::uint32_t lane, const ring_query& query,
                                std::span<const shared_range* const> batch, const buffer& target,
                                gpu::stream& compute) {
  std::vector<gpu::kv_range> ranges;
  std::vector<gpu::attend_work> works;
  for (const std::uint32_t member : query.members) {
    const sequence_plan& plan = query.plans[member];
    const auto first_range = static_cast<std::uint32_t>(ranges.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto& members = batch[i]->members;
      if (std::find(members.begin(), members.end(), member) == members.end()) {
        continue;
      }
      for (std::uint32_t block = 0; block < sizes_.blocks_per_extent; ++block) {
        ranges.push_back(
            {.block = target.data + (i * sizes_.blocks_per_extent + block) * sizes_.block_bytes,
             .first_row = 0,
             .last_row = sizes_.block_tokens,
             .position = static_cast<std::int64_t>(batch[i]->range.first_token +
                                                   std::uint64_t{block} * sizes_.block_tokens)});
      }
    }
    if (ranges.size() > first_range) {
      works.push_back({.first_token = plan.first_token,
                       .tokens = plan.tokens,
                       .position = static_cast<std::int64_t>(plan.position),
                       .first_range = first_range,
                       .range_count = static_cast<std::uint32_t>(ranges.size()) - first_range});
    }
  }
  gpu::attend_args args = query.args;
  args.slice = sizes_.slice_of(lane);
  args.window = sizes_.kind_of(lane).window;
  args.accumulate = true;
  args.ranges = ranges;
  args.works = works;
  device_.attend(args, compute);
}

}  // namespace kvtier
