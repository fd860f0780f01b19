#include "storage/block_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <thread>

#include "storage/seeded.hpp"
#include "tests/storage/block_kit.hpp"

namespace kvtier::storage::test {
namespace {

#define SKIP_WITHOUT(kit)                \
  if (!(kit).unavailable().empty()) {    \
    GTEST_SKIP() << (kit).unavailable(); \
  }

class block_file_test : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<backend_kit> make_kit(const io_options& options = {}) {
    return std::make_unique<backend_kit>(GetParam(), options);
  }
};

TEST_P(block_file_test, gives_back_exactly_what_was_stored) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  const block_file_options options = small_blocks(20);
  auto file = make_block_file(*kit, options);
  ASSERT_EQ(file->slot_count(), 20U);
  std::vector<memory_block> blocks;
  for (std::uint32_t i = 0; i < 20; ++i) {
    put(*kit, *file, blocks.emplace_back(*file, options, i));
  }
  const aligned_buffer target(file->slot_bytes());
  for (const memory_block& block : blocks) {
    ASSERT_EQ(load_now(*kit, *file, block.stored, target.span()), status::ok);
    EXPECT_TRUE(std::ranges::equal(target.span(), block.bytes.span()));
  }
  EXPECT_EQ(file->counters().stored, 20U);
  EXPECT_EQ(file->counters().loaded, 20U);
  EXPECT_EQ(file->counters().rereads, 0U);
}

TEST_P(block_file_test, takes_payloads_that_fill_no_whole_pages_and_no_whole_tiles) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  for (const std::size_t payload : {1U, 4095U, 4097U, 10'000U}) {
    block_file_options options = small_blocks(4);
    options.payload_bytes = payload;
    options.tile_bytes = 3000;
    auto file = make_block_file(*kit, options);
    EXPECT_EQ(file->slot_bytes(), (payload + 4095) / 4096 * 4096);
    memory_block block(*file, options, payload);
    EXPECT_EQ(block.stored.checksums.size(), (payload + 2999) / 3000);
    put(*kit, *file, block);
    const aligned_buffer target(file->slot_bytes());
    ASSERT_EQ(load_now(*kit, *file, block.stored, target.span()), status::ok);
    EXPECT_TRUE(std::ranges::equal(target.span(), block.bytes.span()));
  }
}

TEST_P(block_file_test, lays_out_payload_aligned_and_everything_within_its_capacity) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  block_file_options options = small_blocks(10);
  options.capacity_bytes += 5000;
  options.tile_bytes = 16;  // 2,048 tiles: their checksums need more than one page of header
  auto file = make_block_file(*kit, options);
  EXPECT_LE(file->file_bytes(), options.capacity_bytes);
  std::map<std::uint64_t, std::uint64_t> ranges;
  const std::uint64_t header = file->header_offset(1) - file->header_offset(0);
  EXPECT_GE(header, 2048 * sizeof(tile_checksum));
  for (std::uint32_t i = 0; i < file->slot_count(); ++i) {
    EXPECT_EQ(file->payload_offset(i) % 4096, 0U);
    EXPECT_EQ(file->header_offset(i) % 4096, 0U);
    ranges[file->payload_offset(i)] = file->slot_bytes();
    ranges[file->header_offset(i)] = header;
  }
  EXPECT_EQ(ranges.size(), 2 * file->slot_count());
  std::uint64_t end = 0;
  for (const auto& [begin, length] : ranges) {
    EXPECT_GE(begin, end);
    end = begin + length;
  }
  EXPECT_LE(end, file->file_bytes());
  memory_block block(*file, options, 1);
  put(*kit, *file, block);
  const aligned_buffer target(file->slot_bytes());
  EXPECT_EQ(load_now(*kit, *file, block.stored, target.span()), status::ok);
}

TEST_P(block_file_test, counts_generations_and_refuses_old_handles) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  const block_file_options options = small_blocks(1);
  auto file = make_block_file(*kit, options);
  memory_block first(*file, options, 1);
  put(*kit, *file, first);
  EXPECT_EQ(first.stored.slot.generation, 1U);
  disk_slot none;
  EXPECT_EQ(file->allocate(&none), status::retry);
  EXPECT_EQ(file->free_slots(), 0U);
  file->release(first.stored.slot);
  file->release(first.stored.slot);
  EXPECT_EQ(file->free_slots(), 1U);
  EXPECT_EQ(file->counters().discarded, 1U);
  const aligned_buffer target(file->slot_bytes());
  EXPECT_EQ(load_now(*kit, *file, first.stored, target.span()), status::not_found);

  memory_block second(*file, options, 2);
  put(*kit, *file, second);
  EXPECT_EQ(second.stored.slot.number, first.stored.slot.number);
  EXPECT_EQ(second.stored.slot.generation, 2U);
  EXPECT_EQ(load_now(*kit, *file, first.stored, target.span()), status::not_found);
  EXPECT_EQ(store_now(*kit, *file, first), status::not_found);
  file->release(first.stored.slot);
  EXPECT_EQ(load_now(*kit, *file, second.stored, target.span()), status::ok);
  EXPECT_TRUE(std::ranges::equal(target.span(), second.bytes.span()));
}

TEST_P(block_file_test, shows_nothing_before_a_store_and_takes_one_store_only) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  const block_file_options options = small_blocks(2);
  auto file = make_block_file(*kit, options);
  memory_block block(*file, options, 1);
  const aligned_buffer target(file->slot_bytes());
  EXPECT_EQ(store_now(*kit, *file, block), status::not_found) << "slot never allocated";
  ASSERT_EQ(file->allocate(&block.stored.slot), status::ok);
  EXPECT_EQ(load_now(*kit, *file, block.stored, target.span()), status::not_found);
  EXPECT_EQ(store_now(*kit, *file, block), status::ok);
  EXPECT_EQ(store_now(*kit, *file, block), status::rejected);
}

TEST_P(block_file_test, rejects_arguments_that_can_never_fit) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  const block_file_options options = small_blocks(2);
  auto file = make_block_file(*kit, options);
  memory_block block(*file, options, 1);
  put(*kit, *file, block);
  const aligned_buffer target(file->slot_bytes() + 4096);
  const std::span<std::byte> whole = target.span();
  const std::size_t size = file->slot_bytes();
  auto ignore = [](status) { ADD_FAILURE() << "ran the callback of a refused call"; };
  auto load = [&](const stored_block& what, std::span<std::byte> where) {
    return file->load(what, where, io_priority::demand, ignore);
  };
  EXPECT_EQ(load(block.stored, whole.first(size - 4096)), status::rejected);
  EXPECT_EQ(load(block.stored, whole.subspan(8, size)), status::rejected);
  EXPECT_EQ(file->load(block.stored, whole.first(size), io_priority::demand, {}), status::rejected);
  stored_block wrong = block.stored;
  wrong.checksums.pop_back();
  EXPECT_EQ(load(wrong, whole.first(size)), status::rejected);
  EXPECT_EQ(file->store(wrong, whole.first(size), io_priority::demand, ignore), status::rejected);
  wrong = block.stored;
  wrong.slot.number = 2;
  EXPECT_EQ(load(wrong, whole.first(size)), status::rejected);
}

TEST_P(block_file_test, compares_the_key_and_the_checksums_that_the_reader_holds) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  const block_file_options options = small_blocks(2);
  auto file = make_block_file(*kit, options);
  const aligned_buffer target(file->slot_bytes());
  memory_block one(*file, options, 1);
  put(*kit, *file, one);
  stored_block other_key = one.stored;
  other_key.key = 99;
  EXPECT_EQ(load_now(*kit, *file, other_key, target.span()), status::checksum_error);
  EXPECT_TRUE(all_bytes_are(target.span(), std::byte{0xFF}));
  EXPECT_EQ(file->counters().header_errors, 1U);
  EXPECT_EQ(file->counters().checksum_errors, 0U);

  memory_block two(*file, options, 2);
  put(*kit, *file, two);
  stored_block other_sum = two.stored;
  other_sum.checksums[3] ^= 1;
  EXPECT_EQ(load_now(*kit, *file, other_sum, target.span()), status::checksum_error);
  EXPECT_EQ(file->counters().checksum_errors, 1U);
}

TEST_P(block_file_test, answers_retry_when_the_queue_is_full_and_takes_nothing) {
  auto kit = make_kit({.queue_depth = 1, .queue_limit = 2, .threads = 1});
  SKIP_WITHOUT(*kit);
  const block_file_options options = small_blocks(4);
  auto file = make_block_file(*kit, options);
  std::vector<memory_block> blocks;
  std::atomic<int> stored = 0;
  auto count = [&](status outcome) { stored += outcome == status::ok ? 1 : 0; };
  auto store = [&](const memory_block& block) {
    return file->store(block.stored, block.bytes.span(), io_priority::write_back, count);
  };
  kit->hold();
  for (std::uint64_t i = 0; i < 3; ++i) {
    memory_block& block = blocks.emplace_back(*file, options, i);
    ASSERT_EQ(file->allocate(&block.stored.slot), status::ok);
    EXPECT_EQ(store(block), i < 2 ? status::ok : status::retry);
  }
  kit->release();
  kit->run_until([&] { return stored == 2; });
  EXPECT_EQ(store(blocks[2]), status::ok) << "the refused block can be stored later";
  kit->run_until([&] { return stored == 3; });

  // A load needs two transfers; the header's must get in although the payload's filled the queue.
  const aligned_buffer target(file->slot_bytes());
  EXPECT_EQ(load_now(*kit, *file, blocks[2].stored, target.span()), status::ok);
}

TEST_P(block_file_test, cancels_what_waits_when_the_backend_stops) {
  auto kit = make_kit({.queue_depth = 1, .threads = 1});
  SKIP_WITHOUT(*kit);
  const block_file_options options = small_blocks(4);
  auto file = make_block_file(*kit, options);
  memory_block block(*file, options, 1);
  ASSERT_EQ(file->allocate(&block.stored.slot), status::ok);
  std::atomic<int> ends = 0;
  status outcome = status::ok;
  kit->hold();
  ASSERT_EQ(file->store(block.stored, block.bytes.span(), io_priority::write_back,
                        [&](status end) {
                          outcome = end;
                          ++ends;
                        }),
            status::ok);
  std::jthread stopper([&] { kit->io().stop(); });
  kit->wait_until_stopping();
  kit->release();
  stopper.join();
  EXPECT_EQ(ends, 1);
  EXPECT_EQ(outcome, status::cancelled);
  const aligned_buffer target(file->slot_bytes());
  EXPECT_EQ(load_now(*kit, *file, block.stored, target.span()), status::not_found);
  EXPECT_EQ(store_now(*kit, *file, block), status::rejected);
}

TEST_P(block_file_test, may_go_before_its_operations_end) {
  auto kit = make_kit({.queue_depth = 2, .threads = 1});
  SKIP_WITHOUT(*kit);
  const block_file_options options = small_blocks(8);
  auto file = make_block_file(*kit, options);
  std::vector<memory_block> blocks;
  std::atomic<int> ok = 0;
  for (std::uint64_t i = 0; i < 8; ++i) {
    memory_block& block = blocks.emplace_back(*file, options, i);
    ASSERT_EQ(file->allocate(&block.stored.slot), status::ok);
    ASSERT_EQ(file->store(block.stored, block.bytes.span(), io_priority::write_back,
                          [&](status outcome) { ok += outcome == status::ok ? 1 : 0; }),
              status::ok);
  }
  file.reset();
  kit->run_until([&] { return ok == 8; });
}

/// Threads that allocate, store, load and release blocks of a file too small for all of them:
/// nobody ever sees another's bytes.
TEST_P(block_file_test, never_mixes_blocks_up_under_load) {
  auto kit = make_kit({.queue_depth = 8, .queue_limit = 8, .threads = 3});
  SKIP_WITHOUT(*kit);
  const block_file_options options = small_blocks(6);
  auto file = make_block_file(*kit, options);
  constexpr std::size_t workers = 4;
  constexpr std::size_t rounds = 40;
  std::atomic<std::size_t> finished = 0;
  std::atomic<std::size_t> wrong = 0;

  auto until_taken = [](const auto& attempt) {
    status answer = attempt();
    while (answer == status::retry) {
      std::this_thread::yield();
      answer = attempt();
    }
    return answer;
  };
  auto succeeds = [&](const auto& operation) {
    const auto end = std::make_shared<std::promise<status>>();
    auto done = [end](status outcome) { end->set_value(outcome); };
    return until_taken([&] { return operation(done); }) == status::ok &&
           end->get_future().get() == status::ok;
  };
  std::vector<std::jthread> threads;
  for (std::size_t w = 0; w < workers; ++w) {
    threads.emplace_back([&, w] {
      const aligned_buffer target(file->slot_bytes());
      for (std::size_t round = 0; round < rounds; ++round) {
        memory_block block(*file, options, w * rounds + round);
        wrong += std::size_t{until_taken([&] { return file->allocate(&block.stored.slot); }) !=
                             status::ok};
        wrong += std::size_t{!succeeds([&](const auto& done) {
          return file->store(block.stored, block.bytes.span(), io_priority::write_back, done);
        })};
        wrong += std::size_t{!succeeds([&](const auto& done) {
          return file->load(block.stored, target.span(), io_priority::demand, done);
        })};
        wrong += std::size_t{!std::ranges::equal(target.span(), block.bytes.span())};
        file->release(block.stored.slot);
      }
      ++finished;
    });
  }
  kit->run_until([&] { return finished == workers; });
  threads.clear();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(file->free_slots(), 6U);
  EXPECT_EQ(file->counters().stored, workers * rounds);
  EXPECT_EQ(file->counters().loaded, workers * rounds);
}

INSTANTIATE_TEST_SUITE_P(kinds, block_file_test, testing::ValuesIn(all_backends),
                         [](const auto& kind) { return kind.param; });

}  // namespace
}  // namespace kvtier::storage::test
