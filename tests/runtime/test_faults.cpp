// What a bad disk does to running sequences: data is served right or reported lost, never wrong.
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/runtime_state.hpp"
#include "storage/block_file_on.hpp"
#include "storage/faulty_backend.hpp"
#include "tests/support/runtime_kit.hpp"
#include "tests/support/toy_engine.hpp"

namespace kvtier {
namespace {

constexpr std::uint64_t disk_bytes = std::uint64_t{8} << 20;

/// A runtime whose disk goes through a fault injector.
struct faulty_rig {
  explicit faulty_rig(log_callback log, const std::string& selector = "full") {
    config options =
        test::small_config({.device_extents = 12, .host_extents = 10, .disk_extents = 60}, 64, 0);
    options.selector = parse_selector(selector);
    options.log = std::move(log);
    const geometry sizes = make_geometry(options);
    auto injector = std::make_unique<storage::faulty_backend>(storage::make_threads_backend({}),
                                                              storage::faulty_options{});
    faults = injector.get();
    char path[] = "/tmp/kvtier-faults-XXXXXX";
    const int fd = mkstemp(path);
    EXPECT_GE(fd, 0) << "no temporary file";
    EXPECT_EQ(unlink(path), 0);
    EXPECT_EQ(ftruncate(fd, disk_bytes), 0);
    std::vector<std::unique_ptr<storage::block_file>> files;
    files.push_back(storage::create_block_file_on({.fd = fd, .owned = true, .direct = false},
                                                  {.directory = {},
                                                   .capacity_bytes = disk_bytes,
                                                   .payload_bytes = sizes.block_bytes,
                                                   .tile_bytes = sizes.tile_bytes,
                                                   .model_fingerprint = 1},
                                                  *faults));
    auto disk = std::make_unique<disk_store>(std::move(injector), std::move(files));
    target = std::make_unique<runtime>(
        std::make_unique<runtime::state>(std::move(options), std::move(disk)));
  }

  storage::faulty_backend* faults = nullptr;
  std::unique_ptr<runtime> target;
};

status grow(test::toy_engine& engine, test::toy_sequence& sequence, std::uint32_t tokens) {
  for (std::uint32_t done = 0; done < tokens; done += 64) {
    const status outcome = engine.run({{.target = &sequence, .tokens = 64, .exact = true}});
    if (outcome != status::ok) {
      return outcome;
    }
  }
  return status::ok;
}

TEST(faults, a_flipped_bit_is_lost_and_the_others_go_on) {
  test::log_lines log;
  faulty_rig rig(log.sink());
  test::toy_engine engine(*rig.target, 3, 2e-5);
  engine.check_every(64);
  test::toy_sequence hit, other;
  ASSERT_EQ(rig.target->create_sequence({.max_tokens = 1400}, &hit.handle), status::ok);
  ASSERT_EQ(rig.target->create_sequence({.max_tokens = 100}, &other.handle), status::ok);
  ASSERT_EQ(grow(engine, hit, 1280), status::ok);
  ASSERT_GT(rig.target->stats().disk_written_bytes, 0u);
  rig.faults->add_rule({.kind = storage::fault_kind::flipped_bit,
                        .only = storage::io_kind::read,
                        .probability = 1.0});
  EXPECT_EQ(engine.run({{.target = &hit, .tokens = 1}}), status::lost);
  EXPECT_EQ(hit.handle.length(), 1280u) << "the step did not happen";
  EXPECT_EQ(engine.run({{.target = &hit, .tokens = 1}}), status::lost);
  EXPECT_TRUE(log.contains("checksum error")) << log.all();
  rig.faults->clear_rules();
  EXPECT_EQ(engine.run({{.target = &other, .tokens = 50}}), status::ok);
  EXPECT_EQ(engine.run({{.target = &other, .tokens = 1}}), status::ok);
}

TEST(faults, a_sampled_tile_that_cannot_be_read_is_lost_and_others_go_on) {
  for (const std::string selector : {"sketch:budget=0.2", "topk:budget=0.2"}) {
    test::log_lines log;
    faulty_rig rig(log.sink(), selector);
    test::toy_engine engine(*rig.target, 3, 0.0);
    engine.check_every(0);
    test::toy_sequence hit, other;
    ASSERT_EQ(rig.target->create_sequence({.max_tokens = 1400}, &hit.handle), status::ok);
    ASSERT_EQ(rig.target->create_sequence({.max_tokens = 100}, &other.handle), status::ok);
    ASSERT_EQ(grow(engine, hit, 1280), status::ok);
    ASSERT_EQ(engine.run({{.target = &hit, .tokens = 1}}), status::ok);
    ASSERT_GT(rig.target->stats().disk_read_bytes, 0u);
    rig.faults->add_rule({.kind = storage::fault_kind::flipped_bit,
                          .only = storage::io_kind::read,
                          .probability = 1.0});
    EXPECT_EQ(engine.run({{.target = &hit, .tokens = 2}}), status::lost) << selector;
    EXPECT_EQ(hit.handle.length(), 1281u) << "the step did not happen";
    EXPECT_EQ(engine.run({{.target = &hit, .tokens = 1}}), status::lost) << selector;
    rig.faults->clear_rules();
    EXPECT_EQ(engine.run({{.target = &other, .tokens = 5}}), status::ok);
    EXPECT_EQ(engine.run({{.target = &other, .tokens = 1}}), status::ok);
  }
}

TEST(faults, one_bad_read_is_read_again) {
  faulty_rig rig({});
  test::toy_engine engine(*rig.target, 4, 2e-5);
  engine.check_every(64);
  test::toy_sequence sequence;
  ASSERT_EQ(rig.target->create_sequence({.max_tokens = 1400}, &sequence.handle), status::ok);
  ASSERT_EQ(grow(engine, sequence, 1280), status::ok);
  rig.faults->add_rule({.kind = storage::fault_kind::flipped_bit,
                        .only = storage::io_kind::read,
                        .operations = {0}});
  EXPECT_EQ(engine.run({{.target = &sequence, .tokens = 1}}), status::ok);
}

TEST(faults, a_full_disk_keeps_live_data_above) {
  test::log_lines log;
  faulty_rig rig(log.sink());
  rig.faults->add_rule({.kind = storage::fault_kind::no_space, .probability = 1.0});
  test::toy_engine engine(*rig.target, 5, 2e-5);
  engine.check_every(64);
  test::toy_sequence sequence;
  ASSERT_EQ(rig.target->create_sequence({.max_tokens = 1400}, &sequence.handle), status::ok);
  // Two full lanes: 12 device and 10 host extents hold some 500 tokens; after that there is no
  // room.
  ASSERT_EQ(grow(engine, sequence, 384), status::ok);
  std::uint32_t retries = 0;
  for (bool full = false; !full;) {
    step admitted;
    const step_request request{.target = &sequence.handle, .tokens = 64};
    const status outcome = rig.target->begin_step({&request, 1}, &admitted);
    full = outcome != status::ok && ++retries > 100;
    if (outcome == status::ok) {
      admitted = {};  // abandoned: let the engine do it with data
      ASSERT_EQ(engine.run({{.target = &sequence, .tokens = 64}}), status::ok);
    } else {
      ASSERT_EQ(outcome, status::retry);
      rig.target->wait_for_room(std::chrono::milliseconds(5));
    }
  }
  EXPECT_LT(sequence.handle.length(), 1280u);
  EXPECT_EQ(rig.target->stats().disk_read_bytes, 0u);
}

}  // namespace
}  // namespace kvtier
