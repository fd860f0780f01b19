#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/trace_writer.hpp"

namespace kvtier {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A path of its own per process and test case, removed with the fixture.
class trace_writer_test : public ::testing::Test {
 protected:
  trace_writer_test()
      : path_(std::filesystem::temp_directory_path() /
              ("kvtier_trace_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".json")) {}
  ~trace_writer_test() override { std::filesystem::remove(path_); }

  // The array of events.
  nlohmann::json read() const {
    std::ifstream file(path_);
    return nlohmann::json::parse(file).at("traceEvents");
  }

  // Spans (ph X) of the file, in file order.
  std::vector<nlohmann::json> spans() const {
    std::vector<nlohmann::json> found;
    for (const auto& event : read()) {
      if (event.at("ph") == "X") {
        found.push_back(event);
      }
    }
    return found;
  }

  // tid -> row name, from the metadata.
  std::map<int, std::string> rows() const {
    std::map<int, std::string> names;
    for (const auto& event : read()) {
      if (event.at("name") == "thread_name") {
        names.emplace(event.at("tid").get<int>(), event.at("args").at("name").get<std::string>());
      }
    }
    return names;
  }

  // Row names in the order in which a viewer shows them.
  std::vector<std::string> sorted_rows() const {
    const auto names = rows();
    std::vector<std::pair<int, std::string>> order;
    for (const auto& event : read()) {
      if (event.at("name") == "thread_sort_index") {
        order.emplace_back(event.at("args").at("sort_index").get<int>(),
                           names.at(event.at("tid").get<int>()));
      }
    }
    std::ranges::sort(order);
    std::vector<std::string> sorted;
    for (auto& [index, name] : order) {
      sorted.push_back(std::move(name));
    }
    return sorted;
  }

  const std::filesystem::path path_;
};

TEST_F(trace_writer_test, empty_trace_is_valid_and_names_the_process) {
  trace_writer(path_).close();
  const auto events = read();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].at("name"), "process_name");
  EXPECT_EQ(events[0].at("args").at("name"), "kvtier");
  EXPECT_EQ(events[0].at("pid"), ::getpid());
}

TEST_F(trace_writer_test, span_keeps_name_microseconds_bytes_and_layer) {
  const auto origin = clock::now();
  {
    trace_writer writer(path_);
    writer.add({"device/compute", "attend", origin + 5ms, origin + 5ms + 1234567ns, 4096, 0});
    writer.add({"device/compute", "merge", origin + 8ms, origin + 8ms, 0, -1});
  }
  const auto found = spans();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].at("name"), "attend");
  EXPECT_EQ(found[0].at("dur"), 1234.567);
  EXPECT_EQ(found[0].at("args"), (nlohmann::json{{"bytes", 4096}, {"layer", 0}}));
  EXPECT_EQ(found[1].at("dur"), 0.0);
  EXPECT_EQ(found[1].at("args"), nlohmann::json::object());
  EXPECT_NEAR(found[1].at("ts").get<double>() - found[0].at("ts").get<double>(), 3000.0, 1e-3);
}

TEST_F(trace_writer_test, span_from_before_the_writer_has_a_negative_time) {
  const auto begin = clock::now() - 1s;
  trace_writer writer(path_);
  writer.add({"a", "early", begin, begin + 1us});
  writer.close();
  EXPECT_LT(spans().at(0).at("ts").get<double>(), -999'999.0);
  EXPECT_EQ(spans().at(0).at("dur"), 1.0);
}

TEST_F(trace_writer_test, every_track_is_one_row_sorted_by_name) {
  const auto origin = clock::now();
  trace_writer writer(path_);
  for (int i = 0; i < 3; ++i) {
    for (const char* track : {"host/workers", "device/copy_in", "disk/read", "device/compute"}) {
      writer.add({track, track, origin + i * 1ms, origin + (i + 1) * 1ms});
    }
  }
  writer.close();
  EXPECT_EQ(sorted_rows(), (std::vector<std::string>{"device/compute", "device/copy_in",
                                                     "disk/read", "host/workers"}));
  const auto names = rows();
  for (const auto& span : spans()) {
    EXPECT_EQ(span.at("name"), names.at(span.at("tid").get<int>()));
  }
}

TEST_F(trace_writer_test, spans_that_overlap_go_to_rows_of_their_own) {
  const auto origin = clock::now();
  trace_writer writer(path_);
  writer.add({"disk/read", "first", origin, origin + 10ms});
  writer.add({"disk/read", "second", origin + 5ms, origin + 15ms});
  writer.add({"disk/read", "third", origin + 12ms, origin + 20ms});
  writer.close();
  EXPECT_EQ(sorted_rows(), (std::vector<std::string>{"disk/read", "disk/read (2)"}));
  std::map<std::string, std::string> row_of;
  const auto names = rows();
  for (const auto& span : spans()) {
    row_of[span.at("name")] = names.at(span.at("tid").get<int>());
  }
  EXPECT_EQ(row_of.at("first"), "disk/read");
  EXPECT_EQ(row_of.at("second"), "disk/read (2)");
  EXPECT_EQ(row_of.at("third"), "disk/read");
}

TEST_F(trace_writer_test, names_with_quotes_and_broken_utf8_stay_valid) {
  const auto now = clock::now();
  trace_writer writer(path_);
  writer.add({"a \"b\"\n", "x\\y\xff", now, now});
  writer.close();
  EXPECT_EQ(rows().begin()->second, "a \"b\"\n");
  EXPECT_EQ(spans().at(0).at("name"), "x\\y\xef\xbf\xbd");
}

TEST_F(trace_writer_test, file_grows_while_spans_come_so_that_memory_does_not) {
  const auto origin = clock::now();
  trace_writer writer(path_);
  constexpr int count = 20'000;
  for (int i = 0; i < count; ++i) {
    writer.add({"track", "span", origin + i * 1us, origin + (i + 1) * 1us, 1, 1});
  }
  const auto before_close = std::filesystem::file_size(path_);
  writer.close();
  const auto after_close = std::filesystem::file_size(path_);
  EXPECT_GT(before_close, 0u);
  EXPECT_LE(after_close - before_close, std::uintmax_t{257} << 10);
  EXPECT_EQ(spans().size(), static_cast<std::size_t>(count));
}

TEST_F(trace_writer_test, threads_may_add_at_once) {
  constexpr int threads = 4;
  constexpr int each = 2000;
  const auto origin = clock::now();
  trace_writer writer(path_);
  {
    std::vector<std::jthread> running;
    for (int t = 0; t < threads; ++t) {
      running.emplace_back([&writer, origin, t] {
        const std::string track = "thread " + std::to_string(t);
        for (int i = 0; i < each; ++i) {
          writer.add({track, "work", origin + i * 1us, origin + (i + 1) * 1us, 0, i});
        }
      });
    }
  }
  writer.close();
  std::map<int, std::vector<int>> layers;
  for (const auto& span : spans()) {
    layers[span.at("tid").get<int>()].push_back(span.at("args").at("layer").get<int>());
  }
  ASSERT_EQ(layers.size(), static_cast<std::size_t>(threads));
  for (const auto& [tid, seen] : layers) {
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(each));
    EXPECT_TRUE(std::ranges::is_sorted(seen)) << "tid " << tid;
  }
}

TEST_F(trace_writer_test, closed_writer_ignores_what_follows) {
  const auto now = clock::now();
  trace_writer writer(path_);
  writer.close();
  writer.add({"a", "late", now, now});
  EXPECT_NO_THROW(writer.close());
  EXPECT_TRUE(spans().empty());
}

TEST_F(trace_writer_test, path_that_cannot_be_made_is_named) {
  const auto impossible = path_ / "not" / "there.json";
  try {
    const trace_writer writer(impossible);
    FAIL() << "opened " << impossible;
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::no_such_file_or_directory);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(impossible.string()), HasSubstr("No such file")));
  }
}

TEST(trace_writer, full_disk_is_reported_by_close) {
  if (::access("/dev/full", W_OK) != 0) {
    GTEST_SKIP() << "no writable /dev/full here";
  }
  trace_writer writer("/dev/full");
  try {
    writer.close();
    FAIL() << "wrote to a full device";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::no_space_on_device);
    EXPECT_THAT(error.what(), HasSubstr("/dev/full"));
  }
}

}  // namespace
}  // namespace kvtier
