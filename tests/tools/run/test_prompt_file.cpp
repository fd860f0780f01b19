#include "tools/run/prompt_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <new>
#include <random>
#include <sstream>
#include <stdexcept>
#include <streambuf>

#include "tools/run/usage_error.hpp"

namespace kvtier::run {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<prompt_line> read(const std::string& text) {
  std::istringstream in(text);
  return read_prompts(in, "in.jsonl");
}

/// What is wrong with a file of this one line.
std::string problem(const std::string& line) {
  const auto lines = read(line);
  return lines.size() == 1 ? lines.front().error : "not one line";
}

TEST(read_prompts, takes_text_and_token_ids) {
  const auto lines = read(
      "{\"id\": \"a\", \"prompt\": \"h\\u00e9\\n\"}\n"
      "{\"id\": 7, \"prompt_token_ids\": [0, 5], \"max_tokens\": 3}\n");
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0].id_json, "\"a\"");
  EXPECT_EQ(lines[0].prompt, "h\xc3\xa9\n");
  EXPECT_EQ(lines[0].max_tokens, std::nullopt);
  EXPECT_THAT(lines[0].error, IsEmpty());
  EXPECT_EQ(lines[1].id_json, "7");
  EXPECT_EQ(lines[1].prompt, std::nullopt);
  EXPECT_THAT(lines[1].token_ids, ElementsAre(0, 5));
  EXPECT_EQ(lines[1].max_tokens, 3u);
  EXPECT_EQ(lines[1].line, 2u);
}

TEST(read_prompts, skips_blank_lines_and_takes_bom_crlf_and_a_missing_last_newline) {
  const auto lines = read(
      "\xef\xbb\xbf{\"id\":\"a\",\"prompt\":\"x\"}\r\n\n  \t\r\n{\"id\":\"b\",\"prompt\":\"y\"}");
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(lines[0].error, IsEmpty());
  EXPECT_THAT(lines[1].error, IsEmpty());
  EXPECT_EQ(lines[1].line, 4u);
}

TEST(read_prompts, ignores_other_keys) {
  EXPECT_THAT(problem(R"({"id":"a","prompt":"x","answer":[{"deep":null}]})"), IsEmpty());
}

TEST(read_prompts, refuses_values_too_deep_to_show) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_THAT(problem(deep), HasSubstr("an array of more than 20 levels is not an object"));
  EXPECT_THAT(problem("{\"id\":" + deep + "}"), HasSubstr("\"id\" is an array of more than"));
  EXPECT_THAT(problem("{\"id\":1,\"prompt\":" + deep + "}"), HasSubstr("\"prompt\" is an array"));
  EXPECT_THAT(problem("{\"id\":1,\"prompt\":\"x\",\"other\":" + deep + "}"), IsEmpty());
}

TEST(read_prompts, says_what_is_wrong_and_what_would_be_right) {
  EXPECT_THAT(problem("{\"id\": \"a\", \"prompt\": "), HasSubstr("not JSON at byte"));
  EXPECT_THAT(problem("[1]"), HasSubstr("[1] is not an object"));
  EXPECT_THAT(problem(R"({"prompt":"x"})"), HasSubstr("\"id\" is missing"));
  EXPECT_THAT(problem(R"({"id":1.5,"prompt":"x"})"), HasSubstr("\"id\" is 1.5"));
  EXPECT_THAT(problem(R"({"id":null,"prompt":"x"})"), HasSubstr("\"id\" is null"));
  EXPECT_THAT(problem(R"({"id":"a"})"), HasSubstr("exactly one"));
  EXPECT_THAT(problem(R"({"id":"a","prompt":"x","prompt_token_ids":[1]})"), HasSubstr("both"));
  EXPECT_THAT(problem(R"({"id":"a","prompt":3})"), HasSubstr("\"prompt\" is 3"));
  EXPECT_THAT(problem(R"({"id":"a","prompt":""})"), HasSubstr("empty"));
  EXPECT_THAT(problem(R"({"id":"a","prompt_token_ids":[]})"), HasSubstr("empty"));
  EXPECT_THAT(problem(R"({"id":"a","prompt_token_ids":"x"})"), HasSubstr("array"));
  EXPECT_THAT(problem(R"({"id":"a","prompt_token_ids":[1,2.5]})"), HasSubstr("[1] is 2.5"));
  EXPECT_THAT(problem(R"({"id":"a","prompt_token_ids":[-1]})"), HasSubstr("[0] is -1"));
  EXPECT_THAT(problem(R"({"id":"a","prompt_token_ids":[2147483648]})"), HasSubstr("2147483648"));
  EXPECT_THAT(problem(R"({"id":"a","prompt_token_ids":[18446744073709551615]})"),
              HasSubstr("18446744073709551615"));
  EXPECT_THAT(problem(R"({"id":"a","prompt":"x","max_tokens":0})"),
              HasSubstr("\"max_tokens\" is 0"));
  EXPECT_THAT(problem(R"({"id":"a","prompt":"x","max_tokens":2147483648})"),
              HasSubstr("is 2147483648; write an integer from 1 to 2147483647"));
  EXPECT_THAT(problem(R"({"id":"a","prompt":"x","max_tokens":"5"})"), HasSubstr("\"5\""));
  EXPECT_THAT(problem(R"({"id":"a","prompt":"x","max_tokens":null})"), HasSubstr("null"));
}

TEST(read_prompts, a_number_that_overflows_fails_its_line_only) {
  const std::string digits(400, '9');
  const auto lines =
      read("{\"id\":\"a\",\"prompt\":\"x\",\"max_tokens\":1e999}\n" + std::string("{\"id\":") +
           digits + ",\"prompt\":\"x\"}\n" + "{\"id\":\"c\",\"prompt\":\"y\"}\n");
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_THAT(lines[0].error, HasSubstr("the number \"1e999\" is too large; write"));
  EXPECT_THAT(lines[1].error, HasSubstr("the number \"999"));
  EXPECT_LT(lines[1].error.size(), 150u);
  EXPECT_THAT(lines[2].error, IsEmpty());
}

/// Gives `text`, then fails as `fail` does.
class failing_buffer : public std::streambuf {
 public:
  failing_buffer(std::string text, void (*fail)()) : text_(std::move(text)), fail_(fail) {
    setg(text_.data(), text_.data(), text_.data() + text_.size());
  }

 private:
  int_type underflow() override {
    fail_();
    return traits_type::eof();
  }

  std::string text_;
  void (*fail_)();
};

std::string complaint_about(const std::string& text, void (*fail)()) {
  failing_buffer buffer(text, fail);
  std::istream in(&buffer);
  try {
    const auto lines = read_prompts(in, "in.jsonl");
    return "read " + std::to_string(lines.size()) + " lines";
  } catch (const usage_error& error) {
    return error.what();
  }
}

TEST(read_prompts, a_read_error_is_not_the_end) {
  const std::string text = "{\"id\":1,\"prompt\":\"x\"}\n{\"id\":2,\"prompt\":\"y\"}\n{\"id\"";
  EXPECT_EQ(complaint_about(text, [] {}), "read 3 lines");
  const auto broken = [] {
    errno = EIO;
    throw std::runtime_error("broken");
  };
  EXPECT_THAT(
      complaint_about(text, broken),
      HasSubstr("--input: cannot read 'in.jsonl' beyond line 2 (Input/output error); name"));
  EXPECT_THAT(complaint_about("", broken), HasSubstr("beyond line 0 (Input/output error)"));
  EXPECT_THAT(complaint_about(text, [] { throw std::runtime_error("unknown"); }),
              HasSubstr("beyond line 2 (read error)"));
}

TEST(read_prompts, a_line_that_does_not_fit_into_memory_is_not_the_end) {
  const auto full = [] {
    errno = ENOMEM;
    throw std::bad_alloc();
  };
  EXPECT_THAT(complaint_about("\n{\"id\"", full),
              HasSubstr("beyond line 1 (Cannot allocate memory); split it into smaller jobs, or "
                        "shorten line 2"));
}

TEST(read_prompts, refuses_invalid_utf8_with_a_printable_error) {
  const auto error = problem("{\"id\":\"a\",\"prompt\":\"\xff\xfe\"}");
  EXPECT_THAT(error, HasSubstr("not JSON at byte"));
}

TEST(read_prompts, a_bad_line_keeps_its_id_where_there_is_one) {
  const auto lines = read(R"({"id":"a","prompt":""})");
  EXPECT_EQ(lines.front().id_json, "\"a\"");
}

TEST(read_prompts, a_repeated_id_fails_the_later_line_only) {
  const auto lines = read(
      "{\"id\":\"a\",\"prompt\":\"x\"}\n{\"id\":\"a\",\"prompt\":\"y\"}\n{\"id\":\"b\",\"prompt\":"
      "\"z\"}");
  EXPECT_THAT(lines[0].error, IsEmpty());
  EXPECT_THAT(lines[1].error, HasSubstr("already used on line 1"));
  EXPECT_THAT(lines[2].error, IsEmpty());
}

TEST(read_prompts, an_id_of_a_bad_line_may_be_used_again) {
  const auto lines = read("{\"id\":\"a\",\"prompt\":\"\"}\n{\"id\":\"a\",\"prompt\":\"y\"}");
  EXPECT_THAT(lines[1].error, IsEmpty());
}

TEST(read_prompts, a_string_and_an_integer_are_different_ids) {
  const auto lines = read("{\"id\":1,\"prompt\":\"x\"}\n{\"id\":\"1\",\"prompt\":\"y\"}");
  EXPECT_THAT(lines[1].error, IsEmpty());
}

TEST(read_prompts, survives_deep_nesting_and_random_bytes) {
  EXPECT_THAT(problem(std::string(100'000, '[')), HasSubstr("not JSON"));
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text = R"({"id":"a","prompt":"xyz","max_tokens":12})";
    for (int edit = 0; edit < 3; ++edit) {
      text[random() % text.size()] = static_cast<char>(random() % 256);
    }
    for (const auto& line : read(text)) {
      // Every line is either good or says why not.
      EXPECT_TRUE(!line.error.empty() || line.prompt) << text;
    }
  }
}

}  // namespace
}  // namespace kvtier::run
