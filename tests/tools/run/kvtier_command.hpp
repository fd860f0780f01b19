/// The kvtier command in a folder of its own, with the needle model and questions for it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/tools/command_folder.hpp"

namespace kvtier::test {

inline const std::string needle_folder = KVTIER_SOURCE_DIR "/tests/data/needle";

class kvtier_command : public command_folder {
 protected:
  kvtier_command() : command_folder(KVTIER_BINARY) {}

  void SetUp() override {
    command_folder::SetUp();
    std::filesystem::create_directory(folder_ / "disk");
  }

  command_outcome run_job(const std::string& more, const std::string& out = "out.txt",
                          const std::string& before = "") const {
    return run("run --quiet --model " + needle_folder + " --input in.jsonl " + more, out, before);
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  nlohmann::json read_json(const std::string& name) const {
    return nlohmann::json::parse(read_file(folder_ / name));
  }
};

inline void expect_one_clear_line(const command_outcome& result, int code,
                                  const std::string& mention) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_THAT(result.out, testing::IsEmpty());
  EXPECT_THAT(result.err,
              testing::AllOf(testing::StartsWith("kvtier"), testing::HasSubstr(mention)));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

inline std::vector<nlohmann::json> parse_lines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

/// Filler of `length` bytes with the facts spread over it.
inline std::string make_text(std::size_t length,
                             const std::vector<std::pair<std::string, std::string>>& facts) {
  std::mt19937 random(5);
  std::string text;
  std::size_t next = 0;
  while (text.size() < length || next < facts.size()) {
    if (next < facts.size() && text.size() >= length * next / facts.size()) {
      text += "The code of " + facts[next].first + " is " + facts[next].second + ". ";
      ++next;
    }
    for (auto letters = 2 + random() % 7; letters > 0; --letters) {
      text += static_cast<char>('a' + random() % 26);
    }
    text += ' ';
  }
  return text;
}

inline const std::vector<std::pair<std::string, std::string>> facts = {
    {"bavodi", "40291"}, {"rukemo", "77310"}, {"zitapu", "05862"}, {"golefa", "91438"}};

inline std::string questions(const std::string& text) {
  std::string lines;
  for (const auto& [name, code] : facts) {
    lines +=
        nlohmann::json(
            {{"id", name}, {"prompt", text + "The code of " + name + " is"}, {"max_tokens", 6}})
            .dump() +
        "\n";
  }
  return lines;
}

inline void expect_answers(const std::vector<nlohmann::json>& lines) {
  ASSERT_THAT(lines, testing::SizeIs(facts.size()));
  for (std::size_t i = 0; i < facts.size(); ++i) {
    EXPECT_EQ(lines[i].value("text", lines[i].dump()), " " + facts[i].second);
    EXPECT_EQ(lines[i]["id"], facts[i].first);
  }
}

}  // namespace kvtier::test
