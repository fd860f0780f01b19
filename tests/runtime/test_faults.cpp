// What a bad disk does to running sequences: data is served right or reported lost, never wrong.
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/runtime_state.hpp"
#include "runtime/sequence_state.hpp"
#include "storage/block_file_on.hpp"
#include "storage/faulty_backend.hpp"
#include "tests/support/runtime_accounts.hpp"
#include "tests/support/runtime_kit.hpp"
#include "tests/support/toy_engine.hpp"

namespace kvtier {
namespace {

constexpr std::uint64_t disk_bytes = std::uint64_t{8} << 20;

/// A runtime whose disk goes through a fault injector.
struct faulty_rig {
  explicit faulty_rig(log_callback log, const std::string& selector = "full",
                      kv_shape shape = test::small_shape()) {
    config options =
        test::small_config({.device_extents = 12, .host_extents = 10, .disk_extents = 60}, 64, 0);
    options.shape = std::move(shape);
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
    auto owned = std::make_unique<runtime::state>(std::move(options), std::move(disk));
    parts = owned.get();
    target = std::make_unique<runtime>(std::move(owned));
  }

  storage::faulty_backend* faults = nullptr;
  runtime::state* parts = nullptr;
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

kv_shape full_layers() {
  kv_shape shape = test::small_shape();
  shape.kinds = {};
  return shape;
}

/// The first token of an extent that lies only on disk, in all layers.
std::uint64_t token_on_disk(const faulty_rig& rig, const sequence& of) {
  const auto lock = rig.parts->tiers->lock();
  const auto& lanes = of.get()->lanes;
  for (std::size_t number = 0; number < lanes[0].extents.size(); ++number) {
    if (std::all_of(lanes.begin(), lanes.end(), [number](const lane_extents& lane) {
          const extent& what = *lane.extents[number];
          return what.home == tier::disk && what.device.state == copy_state::absent &&
                 what.host.state == copy_state::absent;
        })) {
      return lanes[0].extents[number]->first_token;
    }
  }
  ADD_FAILURE() << "nothing lies on disk only";
  return 0;
}

/// A sequence of 800 tokens, of which some lie on disk only.
struct spilled_sequence {
  explicit spilled_sequence(log_callback log)
      : rig(std::move(log), "full", full_layers()), engine(*rig.target, 8, 2e-5) {
    engine.check_every(64);
    EXPECT_EQ(rig.target->create_sequence({.max_tokens = 1000}, &context.handle), status::ok);
    EXPECT_EQ(grow(engine, context, 832), status::ok);
    first = token_on_disk(rig, context.handle);
  }

  status truncate(std::uint64_t tokens) {
    const status outcome =
        test::patiently(*rig.target, [&] { return rig.target->truncate(context.handle, tokens); });
    if (outcome == status::ok) {
      context.tokens.resize(tokens);
    }
    return outcome;
  }
  status fork(std::uint64_t tokens, test::toy_sequence& child) {
    const status outcome = test::patiently(*rig.target, [&] {
      return rig.target->fork(context.handle, tokens, {.max_tokens = tokens + 100}, &child.handle);
    });
    child.tokens = context.tokens;
    child.tokens.resize(tokens);
    return outcome;
  }
  void expect_exact_accounts() const {
    const sequence* const all[] = {&context.handle};
    test::expect_exact_accounts(*rig.parts, all);
  }

  faulty_rig rig;
  test::toy_engine engine;
  test::toy_sequence context;
  std::uint64_t first = 0;  ///< a token of an extent that lies on disk only
};

TEST(faults, a_truncate_that_cannot_read_its_tail_changes_nothing) {
  test::log_lines log;
  spilled_sequence spilled(log.sink());
  auto& [rig, engine, context, first] = spilled;
  const std::string begin = std::to_string(first), cut = std::to_string(first + 30);
  rig.faults->add_rule({.kind = storage::fault_kind::flipped_bit,
                        .only = storage::io_kind::read,
                        .probability = 1.0});
  EXPECT_EQ(spilled.truncate(first + 30), status::lost);
  EXPECT_TRUE(log.contains("truncate to token " + cut + ": layer ")) << log.all();
  EXPECT_TRUE(log.contains("a cut at token " + begin + " does without them")) << log.all();
  EXPECT_EQ(context.handle.length(), 832u);
  spilled.expect_exact_accounts();
  EXPECT_EQ(spilled.truncate(first + 30), status::lost) << "it stays lost";
  EXPECT_EQ(engine.run({{.target = &context, .tokens = 1}}), status::lost);
  rig.faults->clear_rules();
  ASSERT_EQ(spilled.truncate(first), status::ok) << "the remedy";
  spilled.expect_exact_accounts();
  EXPECT_EQ(grow(engine, context, 256), status::ok);
}

TEST(faults, a_cut_that_cannot_read_one_layer_leaves_the_rest_readable) {
  spilled_sequence spilled({});
  auto& [rig, engine, context, first] = spilled;
  // All attempts at one layer's tail.
  rig.faults->add_rule({.kind = storage::fault_kind::io_error,
                        .only = storage::io_kind::read,
                        .operations = {0, 1, 2, 3}});
  test::toy_sequence child;
  EXPECT_EQ(spilled.fork(first + 1, child), status::lost);
  EXPECT_FALSE(child.handle);
  EXPECT_EQ(spilled.truncate(first + 63), status::lost);
  EXPECT_EQ(context.handle.length(), 832u);
  spilled.expect_exact_accounts();
  ASSERT_EQ(spilled.fork(first, child), status::ok);
  EXPECT_EQ(grow(engine, child, 64), status::ok);
}

TEST(faults, a_bad_read_of_a_tail_is_read_again) {
  spilled_sequence spilled({});
  spilled.rig.faults->add_rule({.kind = storage::fault_kind::flipped_bit,
                                .only = storage::io_kind::read,
                                .operations = {0}});
  ASSERT_EQ(spilled.truncate(spilled.first + 30), status::ok);
  EXPECT_EQ(spilled.rig.faults->injected(storage::fault_kind::flipped_bit), 1u);
  EXPECT_EQ(grow(spilled.engine, spilled.context, 256), status::ok);
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
  for (bool full = false; !full;) {
    step admitted;
    const step_request request{.target = &sequence.handle, .tokens = 64};
    const status outcome = rig.target->begin_step({&request, 1}, &admitted);
    full = outcome == status::rejected;  // after some retries: writes may still succeed later
    if (outcome == status::ok) {
      admitted = {};  // abandoned: let the engine do it with data
      ASSERT_EQ(engine.run({{.target = &sequence, .tokens = 64}}), status::ok);
    } else if (!full) {
      ASSERT_EQ(outcome, status::retry);
      rig.target->wait_for_room(std::chrono::milliseconds(5));
    }
  }
  EXPECT_LT(sequence.handle.length(), 1280u);
  EXPECT_TRUE(log.contains("its own sequences fill the tiers")) << log.all();
  EXPECT_EQ(rig.target->stats().disk_read_bytes, 0u);
}

}  // namespace
}  // namespace kvtier
