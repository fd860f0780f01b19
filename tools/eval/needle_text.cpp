#include "tools/eval/needle_text.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "lsh/counter_random.hpp"

namespace kvtier::eval {
namespace {

// The filler has no digits and no "code of", and so nothing in it can be taken for a fact.
constexpr std::array<std::string_view, 8> subjects{
    "the ferry",     "a tired clerk", "our teacher",    "the windmill",
    "an old sailor", "the choir",     "a small parcel", "the evening paper"};
constexpr std::array<std::string_view, 8> verbs{"waits for", "looks at",   "walks past",
                                                "speaks of", "leans over", "comes from",
                                                "forgets",   "follows"};
constexpr std::array<std::string_view, 8> objects{
    "the wooden gate", "a row of poplars", "the customs house", "an open window",
    "the lower field", "a pot of honey",   "the last tram",     "two grey horses"};
constexpr std::array<std::string_view, 6> endings{"at dawn", "in the rain",   "without haste",
                                                  "again",   "before supper", "for once"};

/// The longest statement of a fact or a question with its answer, blanks around it included.
constexpr std::uint64_t statement_bytes = std::string_view("The code of bavodi is 40291. ").size();
constexpr std::uint64_t largest_sentence = 80;

class text_maker {
 public:
  text_maker(std::uint64_t bytes, std::uint32_t questions, std::uint64_t seed,
             std::string_view prose)
      : bytes_(bytes), state_(lsh::mix64(seed)), prose_(prose) {
    while (facts_.size() < questions) {
      const std::pair<std::string, std::string> fact{make_name(), make_code()};
      const bool taken = std::any_of(facts_.begin(), facts_.end(), [&](const auto& other) {
        return other.first == fact.first || other.second == fact.second;
      });
      if (!taken) {
        facts_.push_back(fact);
      }
    }
  }

  needle_text make() {
    const std::uint64_t document = bytes_ - facts_.size() * statement_bytes;
    const std::uint64_t part = document / facts_.size();
    made_.facts.resize(facts_.size());
    for (std::size_t i = 0; i < facts_.size(); ++i) {
      fill(i * part + below(part - statement_bytes));
      made_.facts[i] = state(facts_[i]);
    }
    fill(document);
    std::vector<std::size_t> order(facts_.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
      std::swap(order[i], order[below(i + 1)]);
    }
    std::vector<std::uint64_t> places;
    for (const std::size_t i : order) {
      made_.answers.push_back(state(facts_[i]));
      places.push_back(made_.facts[i]);
    }
    made_.facts = std::move(places);
    return std::move(made_);
  }

 private:
  std::uint64_t below(std::uint64_t limit) {
    state_ = lsh::mix64(state_);
    return state_ % limit;
  }
  template <std::size_t Count>
  std::string_view one_of(const std::array<std::string_view, Count>& words) {
    return words.at(below(Count));
  }
  std::string make_name() {
    constexpr std::string_view consonants = "bdfgklmnprstvz";
    constexpr std::string_view vowels = "aeiou";
    std::string name;
    for (int pair = 0; pair < 3; ++pair) {
      name += consonants[below(consonants.size())];
      name += vowels[below(vowels.size())];
    }
    return name;
  }
  std::string make_code() {
    constexpr std::uint64_t smallest = 10000;
    return std::to_string(smallest + below(9 * smallest));
  }

  /// Prose or sentences up to exactly `end` bytes of text; the last one is cut.
  void fill(std::uint64_t end) {
    while (!prose_.empty() && made_.text.size() < end) {
      const std::string_view more = prose_.substr(read_, end - made_.text.size());
      made_.text += more;
      read_ = (read_ + more.size()) % prose_.size();
    }
    while (made_.text.size() < end) {
      std::string sentence;
      for (const std::string_view words :
           {one_of(subjects), one_of(verbs), one_of(objects), one_of(endings)}) {
        sentence += (sentence.empty() ? "" : " ") + std::string(words);
      }
      sentence.front() = static_cast<char>(sentence.front() - 'a' + 'A');
      sentence += ". ";
      made_.text += sentence;
    }
    made_.text.resize(end);
    if (end > 0) {
      made_.text.back() = ' ';
    }
  }
  /// Returns where the code begins.
  std::uint64_t state(const std::pair<std::string, std::string>& fact) {
    made_.text += "The code of " + fact.first + " is ";
    const std::uint64_t at = made_.text.size();
    made_.text += fact.second + ". ";
    return at;
  }

  const std::uint64_t bytes_;
  std::uint64_t state_;
  const std::string_view prose_;
  std::size_t read_ = 0;                                    // of the prose
  std::vector<std::pair<std::string, std::string>> facts_;  // name, code
  needle_text made_;
};

}  // namespace

needle_text make_needle_text(std::uint64_t bytes, std::uint32_t questions, std::uint64_t seed,
                             std::string_view prose) {
  const std::uint64_t least = questions * (2 * statement_bytes + largest_sentence);
  if (questions == 0 || bytes < least) {
    throw std::invalid_argument(
        "needle text: " + std::to_string(questions) + " questions in " + std::to_string(bytes) +
        " tokens; " +
        (questions == 0
             ? "ask at least one"
             : "ask fewer (--queries, or with --needle --keys and --depths), or take at least " +
                   std::to_string(least) + " tokens"));
  }
  return text_maker(bytes, questions, seed, prose).make();
}

}  // namespace kvtier::eval
