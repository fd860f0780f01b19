#include "storage/faulty_backend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cerrno>

#include "storage/block_file_on.hpp"
#include "storage/sim_backend.hpp"
#include "tests/storage/block_kit.hpp"

namespace kvtier::storage::test {
namespace {

using testing::ElementsAre;

/// A faulty backend over the simulator, with a file of four sectors full of 0x22.
class faulty_backend_test : public testing::Test {
 protected:
  static constexpr std::size_t sector = 512;
  static constexpr std::size_t length = 4 * sector;

  explicit faulty_backend_test(const sim_options& simulated = {}) {
    auto upstream = std::make_unique<sim_backend>(simulated);
    sim_ = upstream.get();
    faulty_ = std::make_unique<faulty_backend>(std::move(upstream),
                                               faulty_options{.seed = 7, .sector_bytes = sector});
    fd_ = sim_->make_file(length);
    std::ranges::fill(sim_->file(fd_), old_byte);
  }

  void add(fault_kind kind, std::vector<std::uint64_t> operations) {
    faulty_->add_rule({.kind = kind, .operations = std::move(operations)});
  }

  void submit(io_kind kind, std::vector<std::byte>& bytes, std::size_t id) {
    ASSERT_EQ(faulty_->submit({.kind = kind,
                               .fd = fd_,
                               .buffer = bytes.data(),
                               .length = bytes.size(),
                               .done = results_.record(id)}),
              status::ok);
  }
  io_result run(io_kind kind, std::vector<std::byte>& bytes) {
    const std::size_t id = next_id_++;
    submit(kind, bytes, id);
    sim_->run_until_idle();
    const auto found = results_.of(id);
    EXPECT_EQ(found.size(), 1U);
    return found.empty() ? io_result{} : found.front();
  }
  io_result write_new() { return run(io_kind::write, source_); }
  io_result read() { return run(io_kind::read, target_); }

  std::size_t sectors_changed() {
    const std::span<std::byte> medium = sim_->file(fd_);
    std::size_t changed = 0;
    for (std::size_t at = 0; at < length; at += sector) {
      const bool is_new = all_bytes_are(medium.subspan(at, sector), new_byte);
      EXPECT_TRUE(is_new || all_bytes_are(medium.subspan(at, sector), old_byte));
      changed += std::size_t{is_new};
    }
    return changed;
  }

  static constexpr std::byte old_byte{0x22};
  static constexpr std::byte new_byte{0x33};
  sim_backend* sim_ = nullptr;
  std::unique_ptr<faulty_backend> faulty_;
  int fd_ = -1;
  std::vector<std::byte> source_ = std::vector<std::byte>(length, new_byte);
  std::vector<std::byte> target_ = std::vector<std::byte>(length);
  result_collector results_;
  std::size_t next_id_ = 1000;
};

TEST_F(faulty_backend_test, without_rules_changes_nothing) {
  EXPECT_EQ(faulty_->name(), "faulty(sim)");
  EXPECT_EQ(write_new().outcome, status::ok);
  EXPECT_EQ(sectors_changed(), 4U);
  EXPECT_EQ(read().outcome, status::ok);
  EXPECT_EQ(target_, source_);
}

TEST_F(faulty_backend_test, fails_exactly_the_operations_of_its_schedule) {
  add(fault_kind::io_error, {1, 3});
  std::array<status, 5> outcomes{};
  for (status& outcome : outcomes) {
    outcome = read().outcome;
  }
  EXPECT_THAT(outcomes,
              ElementsAre(status::ok, status::io_error, status::ok, status::io_error, status::ok));
  EXPECT_EQ(faulty_->injected(fault_kind::io_error), 2U);
}

TEST_F(faulty_backend_test, counts_only_the_operations_that_a_rule_concerns) {
  faulty_->add_rule({.kind = fault_kind::io_error, .only = io_kind::write, .operations = {1}});
  EXPECT_EQ(write_new().outcome, status::ok);
  EXPECT_EQ(read().outcome, status::ok);
  EXPECT_EQ(write_new().outcome, status::io_error);
}

TEST_F(faulty_backend_test, a_failed_write_leaves_the_medium_as_it_was) {
  add(fault_kind::io_error, {0});
  add(fault_kind::no_space, {1});
  EXPECT_EQ(write_new().error_number, EIO);
  EXPECT_EQ(write_new().error_number, ENOSPC);
  EXPECT_EQ(sectors_changed(), 0U);
  EXPECT_TRUE(all_bytes_are(source_, new_byte));
}

TEST_F(faulty_backend_test, a_failed_read_leaves_garbage) {
  add(fault_kind::io_error, {0});
  EXPECT_EQ(read().error_number, EIO);
  EXPECT_TRUE(all_bytes_are(target_, std::byte{0xA5}));
}

TEST_F(faulty_backend_test, a_short_transfer_claims_less_than_asked_for_and_moves_that_much) {
  faulty_->add_rule({.kind = fault_kind::short_transfer, .probability = 1});
  for (int i = 0; i < 10; ++i) {
    std::ranges::fill(sim_->file(fd_), old_byte);
    const io_result written = write_new();
    EXPECT_EQ(written.outcome, status::ok);
    EXPECT_LT(written.transferred, length);
    EXPECT_EQ(sectors_changed() * sector, written.transferred);
    std::ranges::fill(sim_->file(fd_), old_byte);
    std::ranges::fill(target_, std::byte{0});
    const io_result got = read();
    EXPECT_LT(got.transferred, length);
    EXPECT_TRUE(all_bytes_are(std::span(target_).first(got.transferred), old_byte));
    EXPECT_TRUE(all_bytes_are(std::span(target_).subspan(got.transferred), std::byte{0}));
  }
}

TEST_F(faulty_backend_test, a_torn_write_claims_success_but_misses_sectors) {
  faulty_->add_rule({.kind = fault_kind::torn_write, .probability = 1});
  for (int i = 0; i < 10; ++i) {
    std::ranges::fill(sim_->file(fd_), old_byte);
    const io_result written = write_new();
    EXPECT_EQ(written.outcome, status::ok);
    EXPECT_EQ(written.transferred, length);
    EXPECT_GE(sectors_changed(), 1U);
    EXPECT_LT(sectors_changed(), 4U);
  }
  std::vector<std::byte> one_sector(sector, new_byte);
  std::ranges::fill(sim_->file(fd_), old_byte);
  EXPECT_EQ(run(io_kind::write, one_sector).outcome, status::ok);
  EXPECT_EQ(sectors_changed(), 0U) << "a single sector is lost as a whole";
}

TEST_F(faulty_backend_test, flips_one_bit_of_what_is_read_or_written) {
  add(fault_kind::flipped_bit, {0, 1});
  auto bits_wrong = [](std::span<const std::byte> bytes, std::byte expected) {
    int count = 0;
    for (const std::byte byte : bytes) {
      count += std::popcount(static_cast<unsigned>(byte ^ expected));
    }
    return count;
  };
  EXPECT_EQ(read().outcome, status::ok);
  EXPECT_EQ(bits_wrong(target_, old_byte), 1);
  EXPECT_EQ(bits_wrong(sim_->file(fd_), old_byte), 0);
  EXPECT_EQ(write_new().outcome, status::ok);
  EXPECT_EQ(bits_wrong(sim_->file(fd_), new_byte), 1);
  EXPECT_EQ(bits_wrong(source_, new_byte), 0);
}

TEST_F(faulty_backend_test, holds_a_stalled_completion_until_released) {
  add(fault_kind::stall, {0});
  submit(io_kind::write, source_, 1);
  submit(io_kind::read, target_, 2);
  sim_->run_until_idle();
  EXPECT_THAT(results_.order(), ElementsAre(2U));
  EXPECT_EQ(faulty_->stalled(), 1U);
  EXPECT_EQ(faulty_->counters().in_flight, 1U);
  EXPECT_EQ(faulty_->release_stalled(), 1U);
  EXPECT_THAT(results_.order(), ElementsAre(2U, 1U));
  EXPECT_EQ(results_.of(1).at(0).outcome, status::ok);
  EXPECT_EQ(faulty_->counters().in_flight, 0U);
}

TEST_F(faulty_backend_test, stop_releases_stalled_completions) {
  add(fault_kind::stall, {0});
  submit(io_kind::read, target_, 1);
  sim_->run_until_idle();
  submit(io_kind::read, target_, 2);
  faulty_->stop();
  EXPECT_EQ(results_.of(1).at(0).outcome, status::ok);
  EXPECT_EQ(results_.of(2).at(0).outcome, status::cancelled);
}

/// Equal latencies, so that the order without faults is that of submission.
class faulty_backend_in_order_test : public faulty_backend_test {
 protected:
  faulty_backend_in_order_test()
      : faulty_backend_test({.least_latency = std::chrono::nanoseconds(10),
                             .most_latency = std::chrono::nanoseconds(10)}) {}
};

TEST_F(faulty_backend_in_order_test, a_reordered_completion_comes_after_the_next_if_there_is_one) {
  add(fault_kind::reordered, {0, 3});
  for (const std::size_t id : {0U, 1U, 2U, 3U}) {
    submit(io_kind::read, target_, id);
  }
  sim_->run_until_idle();
  EXPECT_THAT(results_.order(), ElementsAre(1U, 0U, 2U, 3U));
}

TEST_F(faulty_backend_test, a_full_queue_leaves_no_trace_in_the_schedule) {
  auto upstream = std::make_unique<sim_backend>(sim_options{.io = {.queue_limit = 1}});
  sim_backend& sim = *upstream;
  faulty_backend faulty(std::move(upstream), {});
  faulty.add_rule({.kind = fault_kind::io_error, .operations = {1}});
  const int fd = sim.make_file(length);
  auto read_into = [&](std::size_t id) {
    return faulty.submit(
        {.fd = fd, .buffer = target_.data(), .length = length, .done = results_.record(id)});
  };
  EXPECT_EQ(read_into(0), status::ok);
  EXPECT_EQ(read_into(1), status::retry);
  EXPECT_EQ(read_into(2), status::retry);
  sim.run_until_idle();
  EXPECT_EQ(read_into(3), status::ok);
  sim.run_until_idle();
  EXPECT_EQ(results_.of(0).at(0).outcome, status::ok);
  EXPECT_EQ(results_.of(3).at(0).outcome, status::io_error);
}

TEST(faulty_options, refuse_nonsense) {
  EXPECT_THROW(faulty_backend(nullptr, {}), std::invalid_argument);
  auto sim = [] { return std::make_unique<sim_backend>(sim_options{}); };
  faulty_options options;
  options.rules = {{.kind = fault_kind::stall, .probability = 1.5}};
  EXPECT_THROW(faulty_backend(sim(), options), std::invalid_argument);
  options = {.seed = 0, .sector_bytes = 0};
  EXPECT_THROW(faulty_backend(sim(), options), std::invalid_argument);
}

/// A block file over the faulty simulator.
class block_file_under_faults_test : public testing::Test {
 protected:
  block_file_under_faults_test() {
    auto upstream = std::make_unique<sim_backend>(sim_options{});
    sim_ = upstream.get();
    faulty_ = std::make_unique<faulty_backend>(std::move(upstream), faulty_options{});
    file_ =
        create_block_file_on({.fd = sim_->make_file(options_.capacity_bytes)}, options_, *faulty_);
    block_ = std::make_unique<memory_block>(*file_, options_, 5);
    EXPECT_EQ(file_->allocate(&block_->stored.slot), status::ok);
    target_ = std::make_unique<aligned_buffer>(file_->slot_bytes());
  }

  void add(fault_kind kind, io_kind only, std::vector<std::uint64_t> operations) {
    faulty_->add_rule({.kind = kind, .only = only, .operations = std::move(operations)});
  }
  status store() {
    std::optional<status> end;
    EXPECT_EQ(file_->store(block_->stored, block_->bytes.span(), io_priority::write_back,
                           [&](status outcome) { end = outcome; }),
              status::ok);
    sim_->run_until_idle();
    EXPECT_TRUE(end);
    return end.value_or(status::timed_out);
  }
  status load() {
    std::optional<status> end;
    const status taken = file_->load(block_->stored, target_->span(), io_priority::demand,
                                     [&](status outcome) { end = outcome; });
    if (taken != status::ok) {
      return taken;
    }
    sim_->run_until_idle();
    EXPECT_TRUE(end);
    if (end == status::ok) {
      EXPECT_TRUE(std::ranges::equal(target_->span(), block_->bytes.span()));
    } else {
      EXPECT_TRUE(all_bytes_are(target_->span(), std::byte{0xFF}));
    }
    return end.value_or(status::timed_out);
  }

  block_file_options options_ = small_blocks(2);
  sim_backend* sim_ = nullptr;
  std::unique_ptr<faulty_backend> faulty_;
  std::unique_ptr<block_file> file_;
  std::unique_ptr<memory_block> block_;
  std::unique_ptr<aligned_buffer> target_;
};

TEST_F(block_file_under_faults_test,
       a_failed_write_of_payload_or_header_is_no_store_and_may_be_tried_again) {
  for (const fault_kind kind :
       {fault_kind::io_error, fault_kind::no_space, fault_kind::short_transfer}) {
    faulty_->clear_rules();
    add(kind, io_kind::write, {0, 2});  // the payload's write, then the header's
    EXPECT_EQ(store(), status::io_error);
    EXPECT_EQ(load(), status::not_found);
    EXPECT_EQ(store(), status::io_error);
    EXPECT_EQ(load(), status::not_found);
    EXPECT_EQ(store(), status::ok);
    EXPECT_EQ(load(), status::ok);
    file_->release(block_->stored.slot);
    ASSERT_EQ(file_->allocate(&block_->stored.slot), status::ok);
  }
  EXPECT_EQ(file_->counters().io_errors, 6U);
}

TEST_F(block_file_under_faults_test, a_failed_or_short_read_is_an_io_error_and_may_be_tried_again) {
  ASSERT_EQ(store(), status::ok);
  for (const fault_kind kind : {fault_kind::io_error, fault_kind::short_transfer}) {
    faulty_->clear_rules();
    add(kind, io_kind::read, {0, 3});  // the payload's read, then the header's
    EXPECT_EQ(load(), status::io_error);
    EXPECT_EQ(load(), status::io_error);
    EXPECT_EQ(load(), status::ok);
  }
  EXPECT_EQ(file_->counters().quarantined_slots, 0U);
}

TEST_F(block_file_under_faults_test, a_torn_write_is_caught_by_the_first_load) {
  add(fault_kind::torn_write, io_kind::write, {0});
  EXPECT_EQ(store(), status::ok) << "the drive lied";
  EXPECT_EQ(load(), status::checksum_error);
  EXPECT_EQ(file_->counters().checksum_errors, 1U);
  EXPECT_EQ(load(), status::checksum_error);
}

TEST_F(block_file_under_faults_test, a_lost_header_write_is_caught_by_the_first_load) {
  add(fault_kind::torn_write, io_kind::write, {1});
  EXPECT_EQ(store(), status::ok) << "the drive lied";
  EXPECT_EQ(load(), status::checksum_error);
  EXPECT_EQ(file_->counters().header_errors, 1U);
}

TEST_F(block_file_under_faults_test, a_bit_flipped_on_the_way_in_is_caught) {
  add(fault_kind::flipped_bit, io_kind::write, {0});
  EXPECT_EQ(store(), status::ok);
  EXPECT_EQ(load(), status::checksum_error);
}

TEST_F(block_file_under_faults_test,
       a_bit_flipped_once_on_the_way_out_is_cured_by_the_second_read) {
  ASSERT_EQ(store(), status::ok);
  // A load reads payload and header, each again after a mismatch: 0 to 3, then 4 to 7.
  add(fault_kind::flipped_bit, io_kind::read, {0, 5});
  EXPECT_EQ(load(), status::ok);
  EXPECT_EQ(file_->counters().rereads, 1U);
  EXPECT_EQ(load(), status::ok);
  EXPECT_EQ(file_->counters().rereads, 2U);
  EXPECT_EQ(file_->counters().quarantined_slots, 0U);
}

TEST_F(block_file_under_faults_test, a_stalled_drive_delays_but_loses_nothing) {
  ASSERT_EQ(store(), status::ok);
  add(fault_kind::stall, io_kind::read, {0});
  std::optional<status> end;
  ASSERT_EQ(file_->load(block_->stored, target_->span(), io_priority::demand,
                        [&](status outcome) { end = outcome; }),
            status::ok);
  sim_->run_until_idle();
  EXPECT_FALSE(end);
  faulty_->release_stalled();
  EXPECT_EQ(end, status::ok);
  EXPECT_TRUE(std::ranges::equal(target_->span(), block_->bytes.span()));
}

/// Random faults of every kind: a load gives exactly the bytes stored, or an error and no bytes.
TEST(block_file_under_random_faults, serves_the_right_bytes_or_none) {
  std::uint64_t served = 0;
  std::uint64_t refused = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    faulty_options faults{.seed = seed, .sector_bytes = 512};
    for (const fault_kind kind :
         {fault_kind::io_error, fault_kind::no_space, fault_kind::short_transfer,
          fault_kind::torn_write, fault_kind::flipped_bit, fault_kind::reordered}) {
      faults.rules.push_back({.kind = kind, .probability = 0.05});
    }
    auto upstream = std::make_unique<sim_backend>(sim_options{.seed = seed});
    sim_backend& sim = *upstream;
    faulty_backend faulty(std::move(upstream), faults);
    const block_file_options options = small_blocks(8);
    auto file =
        create_block_file_on({.fd = sim.make_file(options.capacity_bytes)}, options, faulty);
    const aligned_buffer target(file->slot_bytes());
    for (std::uint64_t i = 0; i < 30; ++i) {
      memory_block block(*file, options, seed * 1000 + i);
      if (file->allocate(&block.stored.slot) != status::ok) {
        break;  // all slots went bad
      }
      status outcome = status::timed_out;
      const auto note = [&](status end) { outcome = end; };
      ASSERT_EQ(file->store(block.stored, block.bytes.span(), io_priority::write_back, note),
                status::ok);
      sim.run_until_idle();
      const bool acknowledged = outcome == status::ok;
      const status taken = file->load(block.stored, target.span(), io_priority::demand, note);
      ASSERT_EQ(taken, acknowledged ? status::ok : status::not_found);
      sim.run_until_idle();
      if (acknowledged && outcome == status::ok) {
        ASSERT_TRUE(std::ranges::equal(target.span(), block.bytes.span()));
        ++served;
      } else if (acknowledged) {
        ASSERT_TRUE(all_bytes_are(target.span(), std::byte{0xFF}));
        ++refused;
      }
      file->release(block.stored.slot);
    }
  }
  EXPECT_GT(served, 200U);
  EXPECT_GT(refused, 50U);
}

}  // namespace
}  // namespace kvtier::storage::test
