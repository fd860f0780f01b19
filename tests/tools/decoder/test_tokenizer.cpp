/// The tokenizer against ids that Hugging Face's `tokenizers` computed
/// (tests/golden/make_decoder_goldens.py), and what it refuses.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/tools/decoder/expect_model_error.hpp"
#include "tests/tools/decoder/temporary_folder.hpp"
#include "tests/tools/decoder/test_folders.hpp"
#include "tools/decoder/tokenizer.hpp"

namespace kvtier::test {
namespace {

using json = nlohmann::json;
using ids = std::vector<std::int32_t>;

const std::filesystem::path tokenizer_goldens = tests_folder() / "golden/tokenizer";

json read_json(const std::filesystem::path& file) {
  std::ifstream in(file);
  return json::parse(in);
}

class tokenizer_golden : public testing::TestWithParam<const char*> {
 protected:
  json cases_ = read_json(tokenizer_goldens / GetParam() / "cases.json");
  std::unique_ptr<decoder::tokenizer> tokenizer_ =
      decoder::tokenizer::load(tokenizer_goldens / GetParam());
};

TEST_P(tokenizer_golden, encodes) {
  ASSERT_GT(cases_.size(), 100u);
  for (const json& each : cases_) {
    const auto text = each["text"].get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text), each["ids"].get<ids>()) << each["text"];
    EXPECT_EQ(tokenizer_->encode(text, false), each["plain_ids"].get<ids>()) << each["text"];
  }
}

TEST_P(tokenizer_golden, decodes) {
  for (const json& each : cases_) {
    const auto encoded = each["ids"].get<ids>();
    EXPECT_EQ(decoder::replace_invalid_utf8(tokenizer_->decode(encoded)),
              each["decoded"].get<std::string>());
    EXPECT_EQ(decoder::replace_invalid_utf8(tokenizer_->decode(encoded, false)),
              each["decoded_all"].get<std::string>());
  }
}

/// The tokenizer named "digits" puts a space before every piece, by its own rules.
std::string comparable(std::string text, std::string_view tokenizer) {
  if (tokenizer == "digits") {
    std::erase(text, ' ');
  }
  return text;
}

TEST_P(tokenizer_golden, any_bytes_survive_a_round_trip) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random());
    }
    EXPECT_EQ(comparable(tokenizer_->decode(tokenizer_->encode(bytes)), GetParam()),
              comparable(bytes, GetParam()));
  }
}

TEST_P(tokenizer_golden, long_runs_of_one_character) {
  for (const char unit : {' ', 'a', '\n', '7', '!', '\xff'}) {
    const std::string text(20000, unit);
    EXPECT_TRUE(comparable(tokenizer_->decode(tokenizer_->encode(text)), GetParam()) ==
                comparable(text, GetParam()))
        << "of byte " << static_cast<int>(unit);
  }
}

INSTANTIATE_TEST_SUITE_P(trained, tokenizer_golden,
                         testing::Values("gpt2", "llama3", "whole_text", "digits", "number_groups"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(tokenizer, needle_ids_are_bytes) {
  const auto tokenizer = decoder::tokenizer::load(needle_folder());
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
  }
  const ids encoded = tokenizer->encode(all);
  ASSERT_EQ(encoded.size(), 256u);
  for (std::int32_t byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(encoded[static_cast<std::size_t>(byte)], byte);
  }
  EXPECT_EQ(tokenizer->decode(encoded), all);
  EXPECT_EQ(tokenizer->size(), 256u);
}

TEST(tokenizer, ids_outside_the_vocabulary_decode_to_nothing) {
  const auto tokenizer = decoder::tokenizer::load(tokenizer_goldens / "gpt2");
  const ids known = tokenizer->encode("fox");
  ids mixed{-1, 1 << 30};
  mixed.insert(mixed.end(), known.begin(), known.end());
  mixed.push_back(static_cast<std::int32_t>(tokenizer->size()));
  EXPECT_EQ(tokenizer->decode(mixed), "fox");
}

TEST(replace_invalid_utf8, replaces_each_broken_piece_once) {
  using decoder::replace_invalid_utf8;
  const std::string mark = "\xef\xbf\xbd";
  EXPECT_EQ(replace_invalid_utf8("plain \xc3\xa9 \xf0\x9f\x8e\x89"),
            "plain \xc3\xa9 \xf0\x9f\x8e\x89");
  EXPECT_EQ(replace_invalid_utf8("\xff"), mark);
  EXPECT_EQ(replace_invalid_utf8("a\xf0\x9f\x8e"), "a" + mark);  // cut short
  EXPECT_EQ(replace_invalid_utf8("\xf0\x9f\x8eX"), mark + "X");
  EXPECT_EQ(replace_invalid_utf8("\xc0\xaf"), mark + mark);                        // overlong
  EXPECT_EQ(replace_invalid_utf8("\xed\xa0\x80"), mark + mark + mark);             // surrogate
  EXPECT_EQ(replace_invalid_utf8("\xf4\x90\x80\x80"), mark + mark + mark + mark);  // too large
  EXPECT_EQ(replace_invalid_utf8("\xe2\x82\xe2\x82\xac"), mark + "\xe2\x82\xac");
}

/// A tokenizer.json whose parts a test can spoil.
class bad_tokenizer : public testing::Test {
 protected:
  json file_ = read_json(tokenizer_goldens / "llama3" / "tokenizer.json");
  temporary_folder folder_;

  void expect_refused(std::initializer_list<const char*> parts) {
    folder_.write("tokenizer.json", file_.dump());
    expect_model_error([&] { decoder::tokenizer::load(folder_.path()); }, parts);
  }
};

TEST_F(bad_tokenizer, is_accepted_unspoilt) {
  folder_.write("tokenizer.json", file_.dump());
  EXPECT_NE(decoder::tokenizer::load(folder_.path()), nullptr);
}

TEST_F(bad_tokenizer, other_model) {
  file_["model"]["type"] = "WordPiece";
  expect_refused({"tokenizer.json: model.type", "WordPiece", "only BPE"});
}

TEST_F(bad_tokenizer, sentencepiece) {
  file_["model"]["byte_fallback"] = true;
  expect_refused({"model.byte_fallback", "SentencePiece"});
}

TEST_F(bad_tokenizer, normalizer) {
  file_["normalizer"] = {{"type", "NFC"}};
  expect_refused({"normalizer", "NFC", "not supported"});
}

TEST_F(bad_tokenizer, pre_tokenizers) {
  file_["pre_tokenizer"] = nullptr;
  expect_refused({"pre_tokenizer", "ByteLevel"});
  file_["pre_tokenizer"] = {{"type", "Metaspace"}};
  expect_refused({"pre_tokenizer", "Metaspace"});
  file_["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", json::array()}};
  expect_refused({"pretokenizers", "ByteLevel"});
}

TEST_F(bad_tokenizer, split_that_is_not_isolated) {
  file_["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  expect_refused({"pretokenizers[0].behavior", "Removed", "Isolated"});
}

TEST_F(bad_tokenizer, patterns) {
  json& pattern = file_["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  for (const auto& [text, complaint] : {std::pair{"a(", "does not compile"},
                                        {"[\\p{L}&&[^a]]", "intersection"},
                                        {"\\w+", "\\w"},
                                        {"[a[b]]", "class inside a class"},
                                        {"a\\", "backslash"},
                                        {"[\\S]", "\\S"}}) {
    pattern = text;
    expect_refused({"pattern.Regex", complaint});
  }
}

TEST_F(bad_tokenizer, decoder) {
  file_["decoder"] = {{"type", "Fuse"}};
  expect_refused({"decoder", "Fuse", "ByteLevel"});
  file_["decoder"] = nullptr;
  expect_refused({"decoder", "ByteLevel"});
}

TEST_F(bad_tokenizer, post_processor) {
  file_["post_processor"] = {{"type", "BertProcessing"}};
  expect_refused({"post_processor.type", "BertProcessing"});
}

TEST_F(bad_tokenizer, added_tokens_with_conditions) {
  file_["added_tokens"][0]["lstrip"] = true;
  expect_refused({"added_tokens[0].lstrip"});
}

TEST_F(bad_tokenizer, merges) {
  file_["model"]["merges"][0] = {"no such", "token"};
  expect_refused({"model.merges[0]", "vocabulary lacks", "no such"});
  file_["model"]["merges"][0] = "one";
  expect_refused({"model.merges[0]", "two tokens"});
  file_["model"]["merges"][0] = 7;
  expect_refused({"model.merges[0]", "string"});
}

TEST_F(bad_tokenizer, huge_or_negative_ids) {
  file_["model"]["vocab"]["a"] = 4000000000u;
  expect_refused({"vocab.a", "4000000000"});
  file_["model"]["vocab"]["a"] = -1;
  expect_refused({"vocab.a", "-1"});
}

TEST_F(bad_tokenizer, missing_pieces) {
  for (const char* key : {"model", "pre_tokenizer", "decoder", "added_tokens"}) {
    const json value = file_[key];
    file_.erase(key);
    expect_refused({"tokenizer.json", key, "missing"});
    file_[key] = value;
  }
}

TEST_F(bad_tokenizer, not_json) {
  folder_.write("tokenizer.json", "{\"model\": ");
  expect_model_error([&] { decoder::tokenizer::load(folder_.path()); },
                     {"tokenizer.json", "not JSON"});
  folder_.write("tokenizer.json", "[]");
  expect_model_error([&] { decoder::tokenizer::load(folder_.path()); },
                     {"tokenizer.json", "object"});
}

TEST_F(bad_tokenizer, missing_file) {
  expect_model_error([&] { decoder::tokenizer::load(folder_.path()); },
                     {"tokenizer.json", "is not there"});
}

TEST_F(bad_tokenizer, byte_without_token) {
  file_["model"]["vocab"].erase("!");
  file_["model"]["merges"] = json::array();
  folder_.write("tokenizer.json", file_.dump());
  const auto tokenizer = decoder::tokenizer::load(folder_.path());
  EXPECT_NO_THROW(tokenizer->encode("fine"));
  EXPECT_THROW(tokenizer->encode("broken!"), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::test
