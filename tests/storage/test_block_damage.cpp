#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "storage/block_file_on.hpp"
#include "storage/seeded.hpp"
#include "tests/storage/block_kit.hpp"

namespace kvtier::storage::test {
namespace {

#define SKIP_WITHOUT(kit)                \
  if (!(kit).unavailable().empty()) {    \
    GTEST_SKIP() << (kit).unavailable(); \
  }

/// A file of `count` stored blocks, and what damages its bytes on the medium.
struct damaged_file {
  damaged_file(backend_kit& used, std::uint32_t count)
      : kit(used), options(small_blocks(count)), file(make_block_file(used, options)) {
    std::atomic<std::uint32_t> stored = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      memory_block& block = blocks.emplace_back(*file, options, i);
      EXPECT_EQ(file->allocate(&block.stored.slot), status::ok);
      EXPECT_EQ(file->store(block.stored, block.bytes.span(), io_priority::write_back,
                            [&](status outcome) { stored += outcome == status::ok ? 1U : 0U; }),
                status::ok);
    }
    kit.run_until([&] { return stored == count; });
  }

  std::vector<std::byte> payload(std::uint32_t slot) {
    return kit.read_file(file->descriptor(), file->payload_offset(slot), file->slot_bytes());
  }
  std::vector<std::byte> header(std::uint32_t slot) {
    const std::size_t length = file->header_offset(1) - file->header_offset(0);
    return kit.read_file(file->descriptor(), file->header_offset(slot), length);
  }
  void set_payload(std::uint32_t slot, std::span<const std::byte> bytes) {
    kit.change_file(file->descriptor(), file->payload_offset(slot), bytes);
  }
  void set_header(std::uint32_t slot, std::span<const std::byte> bytes) {
    kit.change_file(file->descriptor(), file->header_offset(slot), bytes);
  }
  void flip_bit(std::uint64_t file_offset, unsigned bit) {
    const std::uint64_t page = file_offset / io_alignment * io_alignment;
    auto bytes = kit.read_file(file->descriptor(), page, io_alignment);
    bytes[file_offset - page] ^= std::byte{1} << static_cast<int>(bit);
    kit.change_file(file->descriptor(), page, bytes);
  }

  /// Loads block `i` and expects that its damage is detected and nothing of it served.
  void expect_detected(std::size_t i) {
    const aligned_buffer target(file->slot_bytes());
    std::ranges::fill(target.span(), std::byte{0x11});
    EXPECT_EQ(load_now(kit, *file, blocks[i].stored, target.span()), status::checksum_error) << i;
    EXPECT_TRUE(all_bytes_are(target.span(), std::byte{0xFF})) << i;
  }
  /// The same for all blocks, 50 loads at a time.
  void expect_all_detected() {
    constexpr std::size_t batch = 50;
    std::vector<aligned_buffer> targets;
    for (std::size_t i = 0; i < batch; ++i) {
      targets.emplace_back(file->slot_bytes());
    }
    for (std::size_t begin = 0; begin < blocks.size(); begin += batch) {
      const std::size_t count = std::min(batch, blocks.size() - begin);
      std::atomic<std::size_t> ended = 0;
      std::atomic<std::size_t> detected = 0;
      for (std::size_t i = 0; i < count; ++i) {
        std::ranges::fill(targets[i].span(), std::byte{0x11});
        EXPECT_EQ(file->load(blocks[begin + i].stored, targets[i].span(), io_priority::demand,
                             [&](status outcome) {
                               detected += outcome == status::checksum_error ? 1U : 0U;
                               ++ended;
                             }),
                  status::ok);
      }
      kit.run_until([&] { return ended == count; });
      EXPECT_EQ(detected, count) << "of the blocks from " << begin;
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(all_bytes_are(targets[i].span(), std::byte{0xFF})) << begin + i;
      }
    }
  }
  void expect_intact(std::size_t i) {
    const aligned_buffer target(file->slot_bytes());
    EXPECT_EQ(load_now(kit, *file, blocks[i].stored, target.span()), status::ok) << i;
    EXPECT_TRUE(std::ranges::equal(target.span(), blocks[i].bytes.span())) << i;
  }

  backend_kit& kit;
  block_file_options options;
  std::unique_ptr<block_file> file;
  std::vector<memory_block> blocks;
};

class block_damage_test : public testing::TestWithParam<std::string> {};

TEST_P(block_damage_test, one_flipped_bit_in_each_of_a_thousand_tiles_is_detected_every_time) {
  constexpr std::uint32_t count = 1000;
  backend_kit kit(GetParam());
  SKIP_WITHOUT(kit);
  damaged_file stored(kit, count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t tile = seeded_bits(1, i) % 8;
    const std::uint64_t bit = seeded_bits(2, i) % (stored.options.tile_bytes * 8);
    const std::uint64_t offset =
        stored.file->payload_offset(i) + tile * stored.options.tile_bytes + bit / 8;
    stored.flip_bit(offset, static_cast<unsigned>(bit % 8));
  }
  stored.expect_all_detected();
  const block_file_counters counters = stored.file->counters();
  EXPECT_EQ(counters.loaded, 0U);
  EXPECT_EQ(counters.checksum_errors, count);
  EXPECT_EQ(counters.header_errors, 0U);
  EXPECT_EQ(counters.rereads, count);
  EXPECT_EQ(counters.quarantined_slots, count);
}

TEST_P(block_damage_test, a_flipped_bit_anywhere_in_a_header_is_detected) {
  constexpr std::uint32_t count = 64;
  backend_kit kit(GetParam());
  SKIP_WITHOUT(kit);
  damaged_file stored(kit, count);
  for (std::uint32_t i = 0; i < count; ++i) {
    // Half of them where the fields are, half anywhere in the page.
    const std::uint64_t bit = seeded_bits(3, i) % ((i % 2 == 0 ? 128 : 4096) * 8);
    stored.flip_bit(stored.file->header_offset(i) + bit / 8, static_cast<unsigned>(bit % 8));
  }
  stored.expect_all_detected();
  EXPECT_EQ(stored.file->counters().header_errors, count);
  EXPECT_EQ(stored.file->counters().checksum_errors, 0U);
}

TEST_P(block_damage_test, swapped_slots_are_detected_though_both_are_sound_in_themselves) {
  backend_kit kit(GetParam());
  SKIP_WITHOUT(kit);
  damaged_file stored(kit, 4);
  const auto payload_0 = stored.payload(0);
  const auto header_0 = stored.header(0);
  stored.set_payload(0, stored.payload(1));
  stored.set_header(0, stored.header(1));
  stored.set_payload(1, payload_0);
  stored.set_header(1, header_0);
  const auto header_2 = stored.header(2);
  stored.set_header(2, stored.header(3));
  stored.set_header(3, header_2);
  for (const std::size_t i : {0U, 1U, 2U, 3U}) {
    stored.expect_detected(i);
  }
  EXPECT_EQ(stored.file->counters().checksum_errors, 2U);
  EXPECT_EQ(stored.file->counters().header_errors, 4U);
}

TEST_P(block_damage_test, a_stale_block_is_detected) {
  backend_kit kit(GetParam());
  SKIP_WITHOUT(kit);
  damaged_file stored(kit, 2);
  const auto old_payload = stored.payload(0);
  const auto old_header = stored.header(0);
  const auto same_payload = stored.payload(1);
  const auto same_header = stored.header(1);
  for (memory_block& block : stored.blocks) {
    stored.file->release(block.stored.slot);
  }
  memory_block rewritten(*stored.file, stored.options, 77);
  stored.blocks[1].stored.slot = {};
  // The lowest free slot is on top of the stack in the order of release: 1, then 0.
  put(kit, *stored.file, stored.blocks[1]);
  put(kit, *stored.file, rewritten);
  ASSERT_EQ(rewritten.stored.slot.number, 0U);
  ASSERT_EQ(stored.blocks[1].stored.slot.number, 1U);
  stored.blocks[0].stored = rewritten.stored;

  // A drive that lost the second write of slot 0: bytes and header are those of the first.
  stored.set_payload(0, old_payload);
  stored.set_header(0, old_header);
  stored.expect_detected(0);
  EXPECT_EQ(stored.file->counters().checksum_errors, 1U);

  // Slot 1 got the same bytes twice; only the generation in the header tells.
  stored.set_payload(1, same_payload);
  stored.set_header(1, same_header);
  stored.expect_detected(1);
  EXPECT_EQ(stored.file->counters().checksum_errors, 1U);
  EXPECT_EQ(stored.file->counters().header_errors, 2U);
}

TEST_P(block_damage_test, zeroed_and_garbage_blocks_are_detected) {
  backend_kit kit(GetParam());
  SKIP_WITHOUT(kit);
  damaged_file stored(kit, 3);
  const std::vector<std::byte> zeros(stored.file->slot_bytes());
  stored.set_payload(0, zeros);
  stored.set_header(1, std::span(zeros).first(4096));
  stored.set_payload(2, pattern(stored.file->slot_bytes(), 1234));
  for (const std::size_t i : {0U, 1U, 2U}) {
    stored.expect_detected(i);
  }
}

TEST_P(block_damage_test, a_truncated_file_is_an_io_error_and_the_rest_stays_readable) {
  backend_kit kit(GetParam());
  SKIP_WITHOUT(kit);
  damaged_file stored(kit, 4);
  // Headers lie behind the payload: cut the last two off.
  kit.truncate_file(stored.file->descriptor(), stored.file->header_offset(2));
  const aligned_buffer target(stored.file->slot_bytes());
  EXPECT_EQ(load_now(kit, *stored.file, stored.blocks[3].stored, target.span()), status::io_error);
  EXPECT_TRUE(all_bytes_are(target.span(), std::byte{0xFF}));
  stored.expect_intact(0);
  kit.truncate_file(stored.file->descriptor(), stored.file->payload_offset(1) + 4096);
  EXPECT_EQ(load_now(kit, *stored.file, stored.blocks[1].stored, target.span()), status::io_error);
  EXPECT_TRUE(all_bytes_are(target.span(), std::byte{0xFF}));
  EXPECT_EQ(stored.file->counters().io_errors, 2U);
}

TEST_P(block_damage_test, damaged_slots_are_quarantined_for_good) {
  backend_kit kit(GetParam());
  SKIP_WITHOUT(kit);
  damaged_file stored(kit, 2);
  const auto sound = stored.payload(0);
  stored.flip_bit(stored.file->payload_offset(0), 0);
  stored.expect_detected(0);
  stored.set_payload(0, sound);
  const aligned_buffer target(stored.file->slot_bytes());
  EXPECT_EQ(load_now(kit, *stored.file, stored.blocks[0].stored, target.span()),
            status::checksum_error)
      << "a slot that went bad once is not trusted again";
  stored.expect_intact(1);
  stored.file->release(stored.blocks[0].stored.slot);
  stored.file->release(stored.blocks[1].stored.slot);
  EXPECT_EQ(stored.file->free_slots(), 1U);
  disk_slot slot;
  ASSERT_EQ(stored.file->allocate(&slot), status::ok);
  EXPECT_EQ(slot.number, 1U);
  EXPECT_EQ(stored.file->allocate(&slot), status::retry);
  EXPECT_EQ(stored.file->counters().quarantined_slots, 1U);
}

INSTANTIATE_TEST_SUITE_P(kinds, block_damage_test, testing::Values("uring", "threads", "sim"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(block_model, a_block_of_another_model_is_refused) {
  backend_kit kit("sim");
  block_file_options options = small_blocks(2);
  const int fd = kit.make_file(options.capacity_bytes);
  auto ours = create_block_file_on({.fd = fd}, options, kit.io());
  memory_block block(*ours, options, 1);
  put(kit, *ours, block);
  options.model_fingerprint ^= 1;
  auto theirs = create_block_file_on({.fd = fd}, options, kit.io());
  memory_block same(*theirs, options, 1);
  put(kit, *theirs, same);
  const aligned_buffer target(ours->slot_bytes());
  EXPECT_EQ(load_now(kit, *ours, block.stored, target.span()), status::checksum_error);
  EXPECT_EQ(ours->counters().header_errors, 1U);
  EXPECT_EQ(ours->counters().checksum_errors, 0U);
}

TEST(block_without_header_check, trusts_the_checksums_in_ram_alone) {
  backend_kit kit("sim");
  block_file_options options = small_blocks(2);
  options.check_headers = false;
  auto file = make_block_file(kit, options);
  memory_block block(*file, options, 1);
  put(kit, *file, block);
  kit.change_file(file->descriptor(), file->header_offset(0), std::vector<std::byte>(4096));
  const std::uint64_t reads = kit.io().counters().reads;
  const aligned_buffer target(file->slot_bytes());
  EXPECT_EQ(load_now(kit, *file, block.stored, target.span()), status::ok);
  EXPECT_EQ(kit.io().counters().reads, reads + 1);
  kit.change_file(file->descriptor(), file->payload_offset(0) + 9, std::vector{std::byte{1}});
  EXPECT_EQ(load_now(kit, *file, block.stored, target.span()), status::checksum_error);
}

}  // namespace
}  // namespace kvtier::storage::test
