#include "runtime/link_mover.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace kvtier {
namespace {

storage::io_priority to_io(link_priority priority) {
  return static_cast<storage::io_priority>(priority);
}

}  // namespace

/// A spill or a fetch of all blocks of one extent.
struct link_mover::disk_transfer {
  const extent* what = nullptr;
  direction way = direction::in;
  link_priority priority = link_priority::demand;
  done_callback done;
  std::vector<disk_place> places;  // with keys and checksums, alive until the last block is done
  std::atomic<std::uint32_t> left{0};
  std::atomic<status> outcome{status::ok};
  std::chrono::steady_clock::time_point begin;
  std::uint32_t track = 0;
};

link_mover::link_mover(const geometry& sizes, const memory_tiers& memory, gpu::device& device,
                       gpu::stream& d2h, gpu::stream& h2d, disk_store* disk, index_store* index,
                       trace_sink* trace)
    : sizes_(sizes),
      memory_(memory),
      device_(device),
      d2h_(d2h),
      h2d_(h2d),
      disk_(disk),
      index_(index),
      trace_(trace) {}

void link_mover::run_copy(const extent& what, direction way, const done_callback& done) {
  const bool up = way == direction::in;
  gpu::stream& order = up ? h2d_ : d2h_;
  transfer_queue& queue = up ? h2d_queue_ : d2h_queue_;
  try {
    if (!up && what.written != nullptr) {
      device_.wait(order, *what.written);
    }
    for (std::size_t i = 0; i < what.blocks; ++i) {
      std::byte* on_device = memory_.device(what.device.slots[i]);
      std::byte* on_host = memory_.host(what.host.slots[i]);
      if (up) {
        device_.copy(on_device, on_host, sizes_.block_bytes, gpu::copy_kind::host_to_device, order);
      } else {
        device_.copy(on_host, on_device, sizes_.block_bytes, gpu::copy_kind::device_to_host, order);
      }
    }
    (up ? h2d_bytes_ : d2h_bytes_) += what.blocks * sizes_.block_bytes;
    // `done` last, here and below: whoever waits for it may destroy the mover.
    device_.notify(order, [done, &queue] {
      queue.ended();
      done(status::ok);
    });
  } catch (const gpu::device_error&) {
    queue.ended();
    done(status::lost);
  }
}

void link_mover::demote(const extent& what, link_priority priority, done_callback done) {
  d2h_queue_.submit(
      priority, [this, &what, done = std::move(done)] { run_copy(what, direction::out, done); });
}

void link_mover::promote(const extent& what, link_priority priority, done_callback done) {
  h2d_queue_.submit(priority,
                    [this, &what, done = std::move(done)] { run_copy(what, direction::in, done); });
}

void link_mover::spill(const extent& what, link_priority priority, done_callback done) {
  auto transfer = std::make_shared<disk_transfer>();
  transfer->what = &what;
  transfer->way = direction::out;
  transfer->priority = priority;
  transfer->done = std::move(done);
  write_queue_.submit(priority, [this, transfer] { run_disk(transfer); });
}

void link_mover::fetch(const extent& what, link_priority priority, done_callback done) {
  auto transfer = std::make_shared<disk_transfer>();
  transfer->what = &what;
  transfer->way = direction::in;
  transfer->priority = priority;
  transfer->done = std::move(done);
  read_queue_.submit(priority, [this, transfer] { run_disk(transfer); });
}

void link_mover::run_disk(const std::shared_ptr<disk_transfer>& transfer) {
  const extent& what = *transfer->what;
  const std::size_t blocks = what.blocks;
  transfer->places = what.disk.places;
  transfer->begin = std::chrono::steady_clock::now();
  transfer->track = claim_track(transfer->way);
  transfer->left = static_cast<std::uint32_t>(blocks);
  for (std::size_t i = 0; i < blocks; ++i) {
    disk_place& place = transfer->places[i];
    place.block.key = what.id * sizes_.blocks_per_extent + i;
    place.block.checksums = what.checksums[i];
    const std::span<std::byte> bytes = memory_.host_bytes(what.host.slots[i]);
    auto done = [this, transfer](status outcome) { block_done(transfer, outcome); };
    const status taken =
        transfer->way == direction::in
            ? disk_->load(place, bytes, to_io(transfer->priority), std::move(done))
            : disk_->store(place, bytes, to_io(transfer->priority), std::move(done));
    if (taken != status::ok) {
      block_done(transfer, taken);
    }
  }
}

void link_mover::block_done(const std::shared_ptr<disk_transfer>& transfer, status outcome) {
  if (outcome != status::ok) {
    transfer->outcome.store(outcome);
  }
  if (transfer->left.fetch_sub(1) > 1) {
    return;
  }
  const bool in = transfer->way == direction::in;
  const std::uint64_t bytes = transfer->places.size() * sizes_.slot_bytes;
  (in ? read_bytes_ : written_bytes_) += bytes;
  if (trace_ != nullptr) {
    const std::string track =
        std::string(in ? "disk/read " : "disk/write ") + std::to_string(transfer->track);
    trace_->add({.track = track,
                 .name = in ? "read" : "write",
                 .begin = transfer->begin,
                 .end = std::chrono::steady_clock::now(),
                 .bytes = bytes,
                 .layer = sizes_.layer_of(transfer->what->lane)});
  }
  release_track(transfer->way, transfer->track);
  (in ? read_queue_ : write_queue_).ended();
  transfer->done(transfer->outcome.load());
}

std::uint32_t link_mover::claim_track(direction way) {
  const std::lock_guard guard(tracks_mutex_);
  auto& tracks = tracks_[static_cast<std::size_t>(way)];
  const auto found = std::find(tracks.begin(), tracks.end(), false);
  const auto track = static_cast<std::uint32_t>(found - tracks.begin());
  if (found == tracks.end()) {
    tracks.push_back(true);
  } else {
    *found = true;
  }
  return track;
}

void link_mover::release_track(direction way, std::uint32_t track) {
  const std::lock_guard guard(tracks_mutex_);
  tracks_[static_cast<std::size_t>(way)][track] = false;
}

std::vector<std::vector<storage::tile_checksum>> link_mover::checksums(const extent& what) {
  std::vector<std::vector<storage::tile_checksum>> sums;
  sums.reserve(what.host.slots.size());
  for (const slot& held : what.host.slots) {
    sums.push_back(storage::checksum_tiles(memory_.host_bytes(held).first(sizes_.block_bytes),
                                           sizes_.tile_bytes));
  }
  return sums;
}

bool link_mover::claim_disk(const extent& what, std::vector<disk_place>* places) {
  return disk_ != nullptr && disk_->claim(what.blocks, places);
}

void link_mover::release_disk(const std::vector<disk_place>& places) { disk_->release(places); }

bool link_mover::claim_index(const extent& what, std::optional<slot>* place) {
  return index_ == nullptr || index_->claim(what, place);
}

void link_mover::release_index(const extent& what) { index_->release(what); }

void link_mover::build_index(const extent& what) {
  const auto begin = std::chrono::steady_clock::now();
  index_->build(what);
  if (trace_ != nullptr) {
    trace_->add({.track = "host/index",
                 .name = "index",
                 .begin = begin,
                 .end = std::chrono::steady_clock::now(),
                 .bytes = what.blocks * sizes_.block_bytes,
                 .layer = sizes_.layer_of(what.lane)});
  }
}

link_counters link_mover::counters() const {
  return {.d2h_bytes = d2h_bytes_,
          .h2d_bytes = h2d_bytes_,
          .disk_read_bytes = read_bytes_,
          .disk_written_bytes = written_bytes_};
}

}  // namespace kvtier
