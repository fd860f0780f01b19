#include "tests/tools/eval/markup_reader.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace kvtier::eval {
namespace {

class reader {
 public:
  explicit reader(std::string_view text) : text_(text) {}

  std::vector<markup_element> read() {
    constexpr std::string_view doctype = "<!DOCTYPE html>";
    if (text_.starts_with(doctype)) {
      at_ = doctype.size();
    }
    while (at_ < text_.size()) {
      if (text_[at_] != '<') {
        add_text(decoded('<'));
      } else if (text_.substr(at_).starts_with("</")) {
        close();
      } else {
        open();
      }
    }
    require(open_.empty(), "an element is not closed");
    require(roots_ == 1, "there must be one root");
    return std::move(elements_);
  }

 private:
  void require(bool met, const std::string& what) const {
    if (!met) {
      throw std::runtime_error(what + " at " + std::to_string(at_) + ": \"" +
                               std::string(text_.substr(std::min(at_, text_.size()), 40)) + "\"");
    }
  }

  char take(char wanted) {
    require(at_ < text_.size() && text_[at_] == wanted, std::string("expected ") + wanted);
    return text_[at_++];
  }

  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
      ++at_;
    }
  }

  std::string name() {
    const std::size_t from = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '-')) {
      ++at_;
    }
    require(at_ > from, "expected a name");
    return std::string(text_.substr(from, at_ - from));
  }

  char reference() {
    static constexpr std::pair<std::string_view, char> known[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#39;", '\''}};
    for (const auto& [written, meant] : known) {
      if (text_.substr(at_).starts_with(written)) {
        at_ += written.size();
        return meant;
      }
    }
    require(false, "a bare ampersand");
    return '\0';
  }

  /// Up to `end`, which stays, or the end of all.
  std::string decoded(char end) {
    std::string made;
    while (at_ < text_.size() && text_[at_] != end) {
      const char byte = text_[at_];
      require(byte != '<', "a bare <");
      require(static_cast<unsigned char>(byte) >= 0x20 || byte == '\n', "a control character");
      made += byte == '&' ? reference() : text_[at_++];
    }
    return made;
  }

  void add_text(const std::string& text) {
    require(!open_.empty() || std::all_of(text.begin(), text.end(),
                                          [](unsigned char c) { return std::isspace(c) != 0; }),
            "text outside of the root");
    for (const std::size_t i : open_) {
      elements_[i].text += text;
    }
  }

  void open() {
    take('<');
    markup_element made{name(), {}, {}, open_.size()};
    for (skip_blanks(); at_ < text_.size() && text_[at_] != '>' && text_[at_] != '/';
         skip_blanks()) {
      const std::string key = name();
      take('=');
      take('"');
      require(made.attributes.emplace(key, decoded('"')).second, "attribute " + key + " again");
      take('"');
    }
    roots_ += open_.empty() ? 1U : 0U;
    elements_.push_back(std::move(made));
    if (at_ < text_.size() && text_[at_] == '/') {
      ++at_;
    } else {
      open_.push_back(elements_.size() - 1);
    }
    take('>');
  }

  void close() {
    at_ += 2;
    const std::string closed = name();
    require(!open_.empty() && elements_[open_.back()].name == closed, "</" + closed + "> too much");
    open_.pop_back();
    take('>');
  }

  std::string_view text_;
  std::size_t at_ = 0, roots_ = 0;
  std::vector<markup_element> elements_;
  std::vector<std::size_t> open_;
};

}  // namespace

std::vector<markup_element> read_markup(std::string_view text) { return reader(text).read(); }

std::vector<markup_element> elements(const std::vector<markup_element>& all, std::string_view name,
                                     std::string_view kind) {
  std::vector<markup_element> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](const markup_element& one) {
    return one.name == name && (kind.empty() || one.is(kind));
  });
  return found;
}

}  // namespace kvtier::eval
