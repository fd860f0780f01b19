#include "runtime/disk_store.hpp"

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

/// Distinguishes files of different shapes; live spill never outlives the process, so this guards
/// only against our own mistakes.
std::uint64_t fingerprint(const geometry& sizes) {
  const std::uint64_t parts[] = {sizes.shape.layers,
                                 sizes.shape.query_heads,
                                 sizes.shape.kv_heads,
                                 sizes.shape.head_dim,
                                 sizes.block_tokens,
                                 sizes.group_heads,
                                 static_cast<std::uint64_t>(sizes.shape.element)};
  return storage::checksum_tile(std::as_bytes(std::span(parts)));
}

}  // namespace

disk_store::disk_store(const config& options, const geometry& sizes)
    : backend_(storage::make_io_backend(options.io, {})) {
  for (const disk_config& disk : options.disks) {
    files_.push_back(storage::block_file::create({.directory = disk.directory,
                                                  .capacity_bytes = disk.bytes,
                                                  .payload_bytes = sizes.block_bytes,
                                                  .tile_bytes = sizes.tile_bytes,
                                                  .model_fingerprint = fingerprint(sizes)},
                                                 *backend_));
  }
}

disk_store::disk_store(std::unique_ptr<storage::io_backend> backend,
                       std::vector<std::unique_ptr<storage::block_file>> files)
    : backend_(std::move(backend)), files_(std::move(files)) {}

disk_store::~disk_store() { files_.clear(); }

std::uint32_t disk_store::slot_count() const noexcept {
  std::uint32_t count = 0;
  for (const auto& file : files_) {
    count += file->slot_count();
  }
  return count;
}

std::uint64_t disk_store::slot_bytes() const noexcept { return files_.front()->slot_bytes(); }

bool disk_store::direct() const noexcept {
  return std::all_of(files_.begin(), files_.end(), [](const auto& file) { return file->direct(); });
}

storage::block_file_counters disk_store::counters() const {
  storage::block_file_counters sum;
  for (const auto& file : files_) {
    const storage::block_file_counters one = file->counters();
    sum.stored += one.stored;
    sum.loaded += one.loaded;
    sum.discarded += one.discarded;
    sum.checksum_errors += one.checksum_errors;
    sum.header_errors += one.header_errors;
    sum.io_errors += one.io_errors;
    sum.quarantined_slots += one.quarantined_slots;
  }
  return sum;
}

bool disk_store::claim(std::uint32_t blocks, std::vector<disk_place>* places) {
  const std::lock_guard guard(mutex_);
  places->clear();
  for (std::size_t tried = 0; places->size() < blocks && tried < files_.size();) {
    const auto file = static_cast<std::uint32_t>(next_file_);
    storage::disk_slot slot;
    if (files_[file]->allocate(&slot) == status::ok) {
      places->push_back({.file = file, .block = {.slot = slot, .key = 0, .checksums = {}}});
      tried = 0;
    } else {
      ++tried;
    }
    next_file_ = (next_file_ + 1) % files_.size();
  }
  if (places->size() == blocks) {
    return true;
  }
  release(*places);
  places->clear();
  return false;
}

void disk_store::release(const std::vector<disk_place>& places) {
  for (const disk_place& place : places) {
    files_[place.file]->release(place.block.slot);
  }
}

status disk_store::store(const disk_place& place, std::span<const std::byte> payload,
                         storage::io_priority priority, storage::block_file::store_callback done) {
  return files_[place.file]->store(place.block, payload, priority, std::move(done));
}

status disk_store::load(const disk_place& place, std::span<std::byte> payload,
                        storage::io_priority priority, storage::block_file::load_callback done) {
  return files_[place.file]->load(place.block, payload, priority, std::move(done));
}

}  // namespace kvtier
