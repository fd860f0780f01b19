#include "tools/run/result_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/run/progress_bar.hpp"

namespace kvtier::run {
namespace {

using nlohmann::json;

prompt_line line_with_id(std::string id_json) {
  prompt_line line;
  line.line = 12;
  line.id_json = std::move(id_json);
  return line;
}

batch_result good_result() {
  batch_result result;
  result.reason = finish_reason::stop;
  result.tokens = {4, 5};
  result.prefill_seconds = 0.5;
  result.decode_seconds = 0.25;
  result.shared_tokens = 64;
  result.rows = {8, 2, 0};
  result.errors = {10, 8, 2.0, 0.75, 9, 4.5, 4.5};
  result.device_peak = 1;
  result.host_peak = 2;
  result.disk_peak = 3;
  return result;
}

TEST(result_json, has_every_field) {
  const auto object =
      json::parse(result_json(line_with_id("\"q\""), good_result(), {"h\xc3\xa9\n", 70}));
  EXPECT_EQ(object,
            json::parse(R"({"id":"q","text":"h\u00e9\n","token_ids":[4,5],"prompt_tokens":70,
    "shared_tokens":64,"prefill_seconds":0.5,"decode_seconds":0.25,"attended_fraction":0.25,
    "peak_bytes":{"device":1,"host":2,"disk":3},"error_bound":0.25,"error_bound_max":0.75,
    "certified_fraction":0.8,"error_estimate":0.5,"mean_shrink":0.5,"finish_reason":"stop"})"));
}

json result_of(const row_usage& rows, const error_usage& errors) {
  auto result = good_result();
  result.rows = rows;
  result.errors = errors;
  return json::parse(result_json(line_with_id("1"), result, {"", 70}));
}

TEST(result_json, says_how_many_keys_a_selector_read) {
  EXPECT_EQ(result_of({8, 2, 7}, {10, 8, 2.0, 0.75, 0, 0.0, 0.0})["keys_scored"], 7);
}

TEST(result_json, an_exact_answer_has_a_bound_of_zero) {
  for (const row_usage rows : {row_usage{}, row_usage{8, 8, 0}}) {
    const auto object = result_of(rows, {});
    EXPECT_EQ(object["attended_fraction"], 1.0);
    EXPECT_EQ(object["error_bound"], 0.0);
    EXPECT_FALSE(object.contains("certified_fraction"));
    EXPECT_FALSE(object.contains("mean_shrink"));
  }
}

TEST(result_json, knows_no_bound_where_tokens_are_ignored) {
  const auto ignored = result_of({8, 2, 0}, {});
  EXPECT_TRUE(ignored["error_bound"].is_null());
  EXPECT_EQ(ignored["attended_fraction"], 0.25);
  EXPECT_FALSE(ignored.contains("certified_fraction"));
}

TEST(result_json, knows_no_bound_where_nothing_could_be_certified) {
  const auto object = result_of({8, 2, 0}, {10, 0, 0.0, 0.0, 0, 0.0, 0.0});
  EXPECT_TRUE(object["error_bound"].is_null());
  EXPECT_TRUE(object["error_bound_max"].is_null());
  EXPECT_TRUE(object["error_estimate"].is_null());
  EXPECT_TRUE(object["mean_shrink"].is_null());
  EXPECT_EQ(object["certified_fraction"], 0.0);
  const auto figures = result_of({8, 2, 0}, {10, 0, 0.0, 0.0, 5, 1.0, 2.5});
  EXPECT_TRUE(figures["error_bound"].is_null());
  EXPECT_EQ(figures["error_estimate"], 0.2);
  EXPECT_EQ(figures["mean_shrink"], 0.5);
}

TEST(logits_json, gives_back_every_float) {
  const std::vector<float> logits = {0.1F, -1.0F / 3.0F, 16777217.0F, 1e-42F, -0.0F, 3.4e38F};
  const std::vector<std::int32_t> tokens = {7, 9};
  const auto object = json::parse(logits_json(line_with_id("\"q\""), tokens, logits));
  EXPECT_EQ(object["id"], "q");
  EXPECT_EQ(object["token_ids"], json(tokens));
  ASSERT_EQ(object["logits"].size(), 2u);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    EXPECT_EQ(object["logits"][i / 3][i % 3].get<float>(), logits[i]) << i;
  }
  const auto none = json::parse(logits_json(line_with_id("1"), {}, {}));
  EXPECT_TRUE(none["logits"].empty());
}

TEST(result_json, a_failure_has_id_error_and_line) {
  batch_result result;
  result.error = "no \"room\"";
  EXPECT_EQ(json::parse(result_json(line_with_id("null"), result, {})),
            json::parse(R"({"id":null,"error":"no \"room\"","line":12})"));
}

TEST(result_json, an_interrupted_prompt_keeps_what_it_has) {
  auto result = good_result();
  result.reason = finish_reason::interrupted;
  EXPECT_EQ(json::parse(result_json(line_with_id("1"), result, {"x", 1}))["finish_reason"],
            "interrupted");
  result.tokens.clear();
  EXPECT_TRUE(json::parse(result_json(line_with_id("1"), result, {"", 1})).contains("error"));
}

TEST(result_writer, keeps_the_order_of_the_input) {
  std::ostringstream out;
  result_writer writer(out, "--output", "x", 3);
  writer.put(1, "b");
  EXPECT_EQ(out.str(), "");
  writer.put(0, "a");
  EXPECT_EQ(out.str(), "a\nb\n");
  EXPECT_TRUE(writer.has(1));
  EXPECT_FALSE(writer.has(2));
  writer.put(2, "c");
  EXPECT_EQ(out.str(), "a\nb\nc\n");
}

TEST(result_writer, names_a_file_that_cannot_be_written) {
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  result_writer writer(out, "--logits", "some/file", 1);
  try {
    writer.put(0, "a");
    FAIL() << "wrote to a broken stream";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("--logits: cannot write 'some/file'"));
  }
}

TEST(result_writer, tries_a_file_that_cannot_be_written_without_throwing) {
  std::ostringstream out;
  result_writer writer(out, "--output", "x", 3);
  EXPECT_TRUE(writer.try_put(0, "a"));
  out.setstate(std::ios::badbit);
  EXPECT_TRUE(writer.try_put(2, "c")) << "not its turn yet";
  EXPECT_FALSE(writer.try_put(1, "b"));
  EXPECT_TRUE(writer.has(1));
  EXPECT_EQ(out.str(), "a\n");
}

TEST(progress_line, fits_its_width_and_never_overflows) {
  batch_progress progress;
  EXPECT_THAT(progress_line(progress, 79), testing::HasSubstr("0/0 prompts"));
  progress.prompts = 20;
  progress.prompts_done = 10;
  progress.prefill_tokens = 100;
  progress.prefilled_tokens = 300;  // prefixes that were given up are read again
  progress.prefill_seconds = 2;
  const auto line = progress_line(progress, 200);
  EXPECT_THAT(line, testing::StartsWith("[##########..........] 10/20"));
  EXPECT_THAT(line, testing::HasSubstr("prefill 300/300 (150/s)"));
  EXPECT_EQ(progress_line(progress, 30).size(), 30u);
}

}  // namespace
}  // namespace kvtier::run
