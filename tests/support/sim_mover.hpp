/// A mover without links: moves tags that stand for bytes, completes in a seeded order when told
/// to, and fails on demand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runtime/mover.hpp"

namespace kvtier::test {

/// Every slot of every tier holds a tag. A transfer moves tags when it completes; a slot that a
/// transfer reads or writes while something else uses it shows up as a wrong tag. Single-threaded.
class sim_mover final : public mover {
 public:
  sim_mover(std::uint32_t device_slots, std::uint32_t host_slots, std::uint32_t disk_slots,
            std::uint64_t seed)
      : device(device_slots, 0),
        host(host_slots, 0),
        disk(disk_slots, 0),
        disk_used_(disk_slots),
        random_(seed) {}

  void demote(const extent& what, link_priority, done_callback done) override {
    start("demote", what, std::move(done));
  }
  void promote(const extent& what, link_priority, done_callback done) override {
    start("promote", what, std::move(done));
  }
  void spill(const extent& what, link_priority, done_callback done) override {
    start("spill", what, std::move(done));
  }
  void fetch(const extent& what, link_priority, done_callback done) override {
    start("fetch", what, std::move(done));
  }

  std::vector<std::vector<storage::tile_checksum>> checksums(const extent& what) override {
    std::vector<std::vector<storage::tile_checksum>> sums;
    for (const slot& held : what.host.slots) {
      sums.push_back({host[held.number]});
    }
    return sums;
  }

  bool claim_disk(const extent& what, std::vector<disk_place>* places) override {
    std::vector<disk_place> claimed;
    for (std::uint32_t i = 0; i < disk.size() && claimed.size() < what.blocks; ++i) {
      if (!disk_used_[i]) {
        claimed.push_back({.file = 0, .block = {.slot = {i, 1}, .key = 0, .checksums = {}}});
      }
    }
    if (claimed.size() < what.blocks) {
      return false;
    }
    for (const disk_place& place : claimed) {
      disk_used_[place.block.slot.number] = true;
    }
    *places = std::move(claimed);
    return true;
  }

  void release_disk(const std::vector<disk_place>& places) override {
    for (const disk_place& place : places) {
      disk_used_[place.block.slot.number] = false;
      disk[place.block.slot.number] = 0;
    }
  }

  /// Lane 1 has no token index, others have, `index_slots` each.
  bool claim_index(const extent& what, std::optional<slot>* place) override {
    if (what.lane == 1) {
      return true;
    }
    auto& slots = indexes_[what.lane];
    const auto free = std::find(slots.begin(), slots.end(), 0u);
    const auto number = static_cast<std::uint32_t>(free - slots.begin());
    if (free != slots.end()) {
      *free = what.id;
    } else if (slots.size() < index_slots) {
      slots.push_back(what.id);
    } else {
      ++refused_indexes;
      return false;
    }
    *place = slot{number, 1};
    return true;
  }
  void release_index(const extent& what) override {
    wrong_indexes += index_of(what) != what.id ? 1u : 0u;
    indexes_[what.lane][what.index->number] = 0;
  }
  void build_index(const extent& what) override {
    // The host copy must be the extent's, still complete, and the slot its own.
    wrong_indexes += index_of(what) != what.id ? 1u : 0u;
    for (const slot& held : what.host.slots) {
      wrong_indexes += host[held.number] == 0 ? 1u : 0u;
    }
  }
  /// Indexes claimed and not released.
  std::size_t indexes() const {
    std::size_t count = 0;
    for (const auto& [lane, slots] : indexes_) {
      count += static_cast<std::size_t>(
          std::count_if(slots.begin(), slots.end(), [](auto id) { return id != 0; }));
    }
    return count;
  }
  std::size_t index_slots = 1000;  ///< of each lane
  std::size_t wrong_indexes = 0, refused_indexes = 0;

  std::size_t in_flight() const { return running_.size(); }

  /// Completes one transfer, chosen by the seed; false when none is in flight.
  bool complete_one() {
    if (running_.empty()) {
      return false;
    }
    const std::size_t chosen = random_() % running_.size();
    transfer ended = std::move(running_[chosen]);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(chosen));
    const bool fails = ended.kind == fail_kind && fail_count > 0;
    fail_count -= fails ? 1 : 0;
    if (!fails) {
      move_tags(ended);
    }
    ended.done(fails ? fail_status : status::ok);
    return true;
  }

  std::vector<std::uint64_t> device, host, disk;  ///< tags
  std::string fail_kind;                          ///< the next `fail_count` of these fail
  int fail_count = 0;
  status fail_status = status::io_error;

 private:
  struct transfer {
    std::string kind;
    const extent* what;
    done_callback done;
  };

  void start(const char* kind, const extent& what, done_callback done) {
    running_.push_back({kind, &what, std::move(done)});
  }

  void move_tags(const transfer& ended) {
    const extent& what = *ended.what;
    for (std::uint32_t i = 0; i < what.blocks; ++i) {
      if (ended.kind == "demote") {
        host[what.host.slots[i].number] = device[what.device.slots[i].number];
      } else if (ended.kind == "promote") {
        device[what.device.slots[i].number] = host[what.host.slots[i].number];
      } else if (ended.kind == "spill") {
        disk[what.disk.places[i].block.slot.number] = host[what.host.slots[i].number];
      } else {
        host[what.host.slots[i].number] = disk[what.disk.places[i].block.slot.number];
      }
    }
  }

  std::vector<bool> disk_used_;
  /// Per lane and slot the id of the extent that holds it, 0 = none.
  std::map<std::uint32_t, std::vector<std::uint64_t>> indexes_;
  std::uint64_t index_of(const extent& what) { return indexes_[what.lane][what.index->number]; }

  std::vector<transfer> running_;
  std::mt19937_64 random_;
};

}  // namespace kvtier::test
