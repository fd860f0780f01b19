#include "tools/decoder/tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "tools/decoder/added_tokens.hpp"
#include "tools/decoder/bpe.hpp"
#include "tools/decoder/json_document.hpp"
#include "tools/decoder/pre_tokenizer.hpp"

namespace kvtier::decoder {
namespace {

/// Ids that the post-processor puts around a text.
struct surroundings {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;
};

std::vector<std::int32_t> special_ids(const json_value& processor, const std::string& name) {
  std::vector<std::int32_t> ids;
  for (const json_value& id : processor.at("special_tokens").at(name).at("ids").elements()) {
    ids.push_back(static_cast<std::int32_t>(id.unsigned_integer(0, (1u << 24) - 1)));
  }
  return ids;
}

void read_template(const json_value& processor, surroundings& around) {
  bool past_text = false;
  for (const json_value& part : processor.at("single").elements()) {
    if (part.has("Sequence")) {
      if (past_text) {
        part.fail("the text is expected once");
      }
      past_text = true;
      continue;
    }
    const auto ids = special_ids(processor, part.at("SpecialToken").at("id").string());
    auto& side = past_text ? around.after : around.before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
}

void read_post_processor(const json_value& processor, surroundings& around) {
  const json_value type = processor.at("type");
  if (type.string() == "Sequence") {
    for (const json_value& part : processor.at("processors").elements()) {
      read_post_processor(part, around);
    }
  } else if (type.string() == "TemplateProcessing") {
    if (!around.before.empty() || !around.after.empty()) {
      processor.fail("more than one template is not supported");
    }
    read_template(processor, around);
  } else if (type.string() != "ByteLevel") {  // which only trims offsets
    type.fail("not supported; ByteLevel and TemplateProcessing are");
  }
}

void require_byte_level_decoder(const json_value& root) {
  const json_value decoder = root.at("decoder");
  if (decoder.raw().is_null() || decoder.at("type").string() != "ByteLevel") {
    decoder.fail("a ByteLevel decoder is expected; only byte-level tokenizers are supported");
  }
}

}  // namespace

struct tokenizer::implementation {
  added_tokens added;
  pre_tokenizer splitter;
  bpe model;
  surroundings around;
  std::uint32_t size = 0;

  explicit implementation(const json_value& root)
      : added(root.at("added_tokens")),
        splitter(root.at("pre_tokenizer")),
        model(root.at("model")) {
    if (root.has("normalizer")) {
      root.at("normalizer").fail("normalizers are not supported; only null is");
    }
    require_byte_level_decoder(root);
    if (root.has("post_processor")) {
      read_post_processor(root.at("post_processor"), around);
    }
    size = static_cast<std::uint32_t>(model.token_bytes().size());
    for (const auto& [id, token] : added.all()) {
      size = std::max(size, static_cast<std::uint32_t>(id) + 1);
    }
  }
};

tokenizer::tokenizer(std::unique_ptr<implementation> parts) : implementation_(std::move(parts)) {}
tokenizer::~tokenizer() = default;

std::unique_ptr<tokenizer> tokenizer::load(const std::filesystem::path& folder) {
  const json_document document = json_document::load(folder / "tokenizer.json");
  return std::unique_ptr<tokenizer>(
      new tokenizer(std::make_unique<implementation>(document.root())));
}

std::vector<std::int32_t> tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const implementation& parts = *implementation_;
  std::vector<std::int32_t> ids;
  if (add_special_tokens) {
    ids = parts.around.before;
  }
  const auto encode_text = [&](std::string_view stretch) {
    const text_pieces pieces = parts.splitter.split(stretch);
    for (const std::string_view piece : pieces.views) {
      parts.model.encode(piece, ids);
    }
  };
  parts.added.split(text, encode_text, [&](std::int32_t id) { ids.push_back(id); });
  if (add_special_tokens) {
    ids.insert(ids.end(), parts.around.after.begin(), parts.around.after.end());
  }
  return ids;
}

std::string tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  const auto& bytes = implementation_->model.token_bytes();
  std::string text;
  for (const std::int32_t id : ids) {
    if (const added_token* token = implementation_->added.find(id)) {
      text += token->special && skip_special_tokens ? std::string_view() : token->content;
    } else if (id >= 0 && static_cast<std::size_t>(id) < bytes.size()) {
      text += bytes[static_cast<std::size_t>(id)];
    }
  }
  return text;
}

std::uint32_t tokenizer::size() const noexcept { return implementation_->size; }

}  // namespace kvtier::decoder
