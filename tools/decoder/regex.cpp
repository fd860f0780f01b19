#include "tools/decoder/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <stdexcept>

#include "tools/decoder/model_error.hpp"

namespace kvtier::decoder {
namespace {

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 128> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// Unicode's White_Space. PCRE2's \s has U+180E as well, which Unicode dropped long ago.
constexpr std::string_view white_space =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

/// Escapes that mean the same to both engines, besides \s and \S, which are written out.
constexpr std::string_view shared_escapes = "pPdDrntfxAz";

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/// Rewrites a pattern from Oniguruma's syntax to PCRE2's.
class translation {
 public:
  translation(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {
    while (at_ < pattern_.size()) {
      step();
    }
  }
  std::string take() { return std::move(result_); }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    throw model_error(where_ + ": the pattern " + std::string(pattern_) + " uses " +
                      std::string(construct) + ", which is not supported; use another tokenizer");
  }

  void step() {
    const char c = pattern_[at_++];
    if (c == '\\') {
      escape();
      return;
    }
    if (in_class_) {
      inside_class(c);
    } else if (c == '[') {
      in_class_ = true;
      result_ += c;
      // A bracket that comes first is a literal one.
      for (const char literal : {'^', ']'}) {
        if (at_ < pattern_.size() && pattern_[at_] == literal) {
          result_ += literal == ']' ? "\\]" : "^";
          ++at_;
        }
      }
    } else {
      result_ += c;
    }
  }

  void inside_class(char c) {
    if (c == '[') {
      refuse("a class inside a class");
    }
    if (c == '&' && at_ < pattern_.size() && pattern_[at_] == '&') {
      refuse("an intersection of classes (&&)");
    }
    in_class_ = c != ']';
    result_ += c;
  }

  void escape() {
    if (at_ == pattern_.size()) {
      refuse("a backslash at its end");
    }
    const char c = pattern_[at_++];
    if (c == 's') {
      result_ += in_class_ ? std::string(white_space) : "[" + std::string(white_space) + "]";
    } else if (c == 'S' && !in_class_) {
      result_ += "[^" + std::string(white_space) + "]";
    } else if (!is_letter_or_digit(c) || shared_escapes.find(c) != std::string_view::npos) {
      result_ += '\\';
      result_ += c;
    } else {
      refuse(std::string("\\") + c + (in_class_ ? " inside a class" : ""));
    }
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string result_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

struct regex::compiled {
  pcre2_code* code = nullptr;

  compiled(std::string_view pattern, std::uint32_t options, const std::string& where) {
    pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                         options | PCRE2_UTF | PCRE2_MATCH_INVALID_UTF, &error, &offset, context);
    pcre2_compile_context_free(context);
    if (code == nullptr) {
      throw model_error(where + ": the pattern " + std::string(pattern) + " does not compile: " +
                        message_of(error) + " at " + std::to_string(offset));
    }
    // Without the compiler for this machine matching is slower and the same.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  ~compiled() { pcre2_code_free(code); }
  compiled(const compiled&) = delete;
  compiled& operator=(const compiled&) = delete;
};

regex::regex(std::unique_ptr<compiled> code) : code_(std::move(code)) {}
regex::regex(std::string_view pattern, const std::string& where)
    : code_(std::make_unique<compiled>(translation(pattern, where).take(),
                                       PCRE2_UCP | PCRE2_MULTILINE, where)) {}
regex regex::literal(std::string_view text, const std::string& where) {
  return regex(std::make_unique<compiled>(text, PCRE2_LITERAL, where));
}
regex::~regex() = default;
regex::regex(regex&&) noexcept = default;

void regex::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create_from_pattern(code_->code, nullptr), &pcre2_match_data_free);
  if (match == nullptr) {
    throw std::bad_alloc();
  }
  const auto emit = [&](std::size_t begin, std::size_t end) {
    if (begin < end) {
      piece(text.substr(begin, end - begin));
    }
  };
  std::size_t done = 0;
  std::size_t from = 0;
  while (from < text.size()) {
    const int found = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), from, PCRE2_NOTEMPTY, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (found < 0) {
      throw std::invalid_argument("the tokenizer's pattern fails on this text: " +
                                  message_of(found) + "; cut the text into smaller parts");
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    emit(done, range[0]);
    emit(range[0], range[1]);
    done = from = range[1];
  }
  emit(done, text.size());
}

}  // namespace kvtier::decoder
