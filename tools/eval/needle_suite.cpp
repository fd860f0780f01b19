#include "tools/eval/needle_suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>

#include "runtime/kvtier.hpp"
#include "tools/decoder/model.hpp"
#include "tools/eval/needle_text.hpp"
#include "tools/run/measured_bits.hpp"
#include "tools/run/run_options.hpp"
#include "tools/run/runtime_engine.hpp"

namespace kvtier::eval {
namespace {

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;
constexpr std::size_t digits = 5;
constexpr std::uint32_t prefill_chunk = 512;
constexpr std::uint64_t device_tokens = 512;

/// A question about a text.
struct asked_needle {
  std::string question, answer;
  std::uint64_t fact = 0;  ///< byte at which its statement begins
  std::uint64_t fact_end = 0;
};

struct haystack {
  std::string text;  ///< without questions
  std::vector<asked_needle> needles;
};

/// Takes the text apart again: a document, then a question with its answer for every fact.
haystack make_haystack(const needle_options& options, std::uint64_t tokens, std::uint32_t keys,
                       std::uint64_t seed) {
  constexpr std::string_view opening = "The code of ";
  const needle_text made = make_needle_text(tokens, keys, seed, options.prose);
  haystack hay;
  std::uint64_t first = made.text.size();
  for (std::size_t i = 0; i < made.answers.size(); ++i) {
    const std::uint64_t at = made.text.rfind(opening, made.answers[i]);
    const std::uint64_t fact = made.text.rfind(opening, made.facts[i]);
    hay.needles.push_back({made.text.substr(at, made.answers[i] - at),
                           made.text.substr(made.answers[i], digits), fact,
                           made.facts[i] + digits});
    first = std::min(first, at);
  }
  hay.text = made.text.substr(0, first);
  return hay;
}

/// The same text without its facts, whose place says nothing now.
std::string without_facts(const haystack& hay) {
  std::string text = hay.text;
  constexpr std::string_view instead = "and so it went on and on, ";
  for (const asked_needle& needle : hay.needles) {
    for (std::uint64_t at = needle.fact; at < needle.fact_end; ++at) {
      text[at] = instead[(at - needle.fact) % instead.size()];
    }
  }
  return text;
}

std::vector<std::int32_t> tokens_of(std::string_view text) {
  std::vector<std::int32_t> tokens;
  for (const char byte : text) {
    tokens.push_back(static_cast<std::int32_t>(static_cast<unsigned char>(byte)));
  }
  return tokens;
}

enum class asking { full, dense, sparse };

/// A model over tiers that hold one long text off the device.
class needle_reader {
 public:
  /// `sample` is a text like those that it will read, for selectors that are fitted to the model.
  needle_reader(const needle_options& options, decoder::model& model, const std::string& selector,
                std::uint64_t tokens, std::string_view sample) {
    run::run_options flags;
    flags.selector = selector;
    flags.threads = options.threads;
    flags.kv_dtype = options.kv_dtype;
    flags.seed = options.seed;
    config settings = run::make_config(flags, model.config(), {});
    const std::uint64_t token_bytes = settings.shape.layers * settings.shape.token_bytes();
    // Whatever the length, the device holds hardly more than what is exact and the ring; the host
    // has room for all, indexes included.
    settings.device_memory = device_tokens * token_bytes;
    settings.host_memory = (tokens + tokens / 2) * token_bytes + 64 * mebi;
    settings.log = [this](log_level level, std::string_view text) {
      if (level == log_level::error) {
        last_error_ = text;
      }
    };
    run::measure_bits(model, tokens_of(sample), settings);
    target_ = runtime::open(std::move(settings));
    engine_ = std::make_unique<run::runtime_engine>(*target_, model, nullptr,
                                                    [this] { return last_error_; });
  }

  run::context_id create(std::uint64_t tokens) {
    run::context_id made = 0;
    require(engine_->create(tokens, &made), "no room for the text");
    return made;
  }
  run::context_id fork(run::context_id parent, std::uint64_t length, std::uint64_t tokens) {
    run::context_id made = 0;
    require(patiently([&] { return engine_->fork(parent, length, tokens, &made); }),
            "no room for a fork");
    return made;
  }
  void release(run::context_id context) { engine_->release(context); }
  std::uint64_t alignment() const { return engine_->fork_alignment(); }

  /// Reads exactly.
  void read(run::context_id context, std::string_view text, std::uint64_t from, std::uint64_t to) {
    const std::vector<std::int32_t> tokens = tokens_of(text.substr(0, to));
    const std::uint32_t most =
        std::min(prefill_chunk, std::max(1U, engine_->max_step_tokens(1, text.size())));
    while (from < to) {
      const auto count = std::min<std::uint64_t>(most, to - from);
      step(context, std::span(tokens).subspan(from, count), from, true);
      from += count;
    }
  }

  /// Whether the needle's answer comes back from a context of `length` tokens; adds to the rows.
  bool ask(run::context_id context, std::uint64_t length, const asked_needle& needle, asking how,
           run::row_usage& rows) {
    const std::vector<std::int32_t> question = tokens_of(needle.question);
    const std::uint32_t most =
        how == asking::sparse ? std::max(1U, engine_->max_sampled_tokens(1)) : prefill_chunk;
    std::int32_t next = 0;
    for (std::size_t from = 0; from < question.size();) {
      const auto count = std::min<std::size_t>(most, question.size() - from);
      next = step(context, std::span(question).subspan(from, count), length + from,
                  how != asking::sparse);
      from += count;
    }
    std::string answer(1, static_cast<char>(next));
    for (std::uint64_t at = length + question.size(); answer.size() < digits; ++at) {
      next = step(context, {&next, 1}, at, how == asking::full);
      answer += static_cast<char>(next);
    }
    rows.add(engine_->rows(context));
    return answer == needle.answer;
  }

 private:
  void require(status outcome, const char* what) const {
    if (outcome != status::ok) {
      throw std::runtime_error(
          fmt::format("needles: {}: {} ({})", what, to_string(outcome), last_error_));
    }
  }

  /// Again while `action` answers retry: transfers are under way.
  template <class Action> status patiently(const Action& action) {
    constexpr std::chrono::milliseconds patience{100};
    constexpr int tries = 300;
    status outcome = action();
    for (int tried = 0; outcome == status::retry && tried < tries; ++tried) {
      engine_->wait_for_room(patience);
      outcome = action();
    }
    return outcome;
  }

  std::int32_t step(run::context_id context, std::span<const std::int32_t> tokens,
                    std::uint64_t position, bool exact) {
    const run::step_part part{context, position, tokens, exact};
    run::step_outcome outcome;
    require(patiently([&] {
              outcome = engine_->step({&part, 1});
              return outcome.outcome;
            }),
            "a step failed");
    return outcome.next.front();
  }

  std::string last_error_;
  std::unique_ptr<runtime> target_;
  std::unique_ptr<run::runtime_engine> engine_;
};

/// All ways to ask, over one text and selector.
class needle_tally {
 public:
  needle_tally(const needle_options& options, std::uint64_t tokens, const char* keys,
               const std::string& selector) {
    const auto line = [&](const char* question, const std::string& chosen) {
      needle_result made;
      made.tokens = tokens;
      made.keys = keys;
      made.question = question;
      made.selector = chosen;
      for (std::uint32_t i = 0; i < options.depths; ++i) {
        made.cells.push_back({(i + .5) / options.depths});
      }
      return made;
    };
    if (selector == options.selectors.front()) {  // full is the same beside every selector
      results_.push_back(line("dense", "full"));
      ways_.push_back(asking::full);
    }
    results_.push_back(line("dense", selector));
    results_.push_back(line("sparse", selector));
    ways_.insert(ways_.end(), {asking::dense, asking::sparse});
    rows_.resize(results_.size());
  }

  /// Asks on forks of `context`, which holds `length` tokens.
  void ask(needle_reader& reader, run::context_id context, std::uint64_t length,
           const asked_needle& needle) {
    constexpr std::uint64_t room = 64;  // question and answer
    for (std::size_t i = 0; i < results_.size(); ++i) {
      needle_result& result = results_[i];
      const run::context_id fork = reader.fork(context, length, length + room);
      const bool right = reader.ask(fork, length, needle, ways_[i], rows_[i]);
      reader.release(fork);
      const double depth = static_cast<double>(needle.fact) / static_cast<double>(length);
      const auto part =
          std::min(static_cast<std::size_t>(depth * static_cast<double>(result.cells.size())),
                   result.cells.size() - 1);
      ++result.asked;
      ++result.cells[part].asked;
      result.right += right ? 1 : 0;
      result.cells[part].right += right ? 1 : 0;
    }
  }

  std::vector<needle_result> take() {
    for (std::size_t i = 0; i < results_.size(); ++i) {
      results_[i].rows_fraction =
          rows_[i].offloaded == 0
              ? 1.0
              : static_cast<double>(rows_[i].loaded) / static_cast<double>(rows_[i].offloaded);
    }
    return std::move(results_);
  }

 private:
  std::vector<needle_result> results_;
  std::vector<asking> ways_;  // [results_]
  std::vector<run::row_usage> rows_;
};

constexpr std::uint64_t spare_tokens = 128;  // beyond the text: a question and an answer

std::vector<needle_result> ask_many(const needle_options& options, needle_reader& reader,
                                    std::uint64_t tokens, const std::string& selector) {
  constexpr std::uint64_t tokens_per_needle = 160;  // short texts have no room for more
  const auto room = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(tokens / tokens_per_needle, 1, options.keys));
  const haystack hay = make_haystack(options, tokens, room, options.seed);
  needle_tally tally(options, tokens, "many", selector);
  const run::context_id context = reader.create(tokens + spare_tokens);
  reader.read(context, hay.text, 0, hay.text.size());
  for (const asked_needle& needle : hay.needles) {
    tally.ask(reader, context, hay.text.size(), needle);
  }
  reader.release(context);
  return tally.take();
}

/// The text up to a needle is read once for all needles: each forks off before its own.
std::vector<needle_result> ask_one(const needle_options& options, needle_reader& reader,
                                   std::uint64_t tokens, const std::string& selector) {
  haystack hay = make_haystack(options, tokens, options.depths, options.seed + 1);
  std::sort(hay.needles.begin(), hay.needles.end(),
            [](const auto& a, const auto& b) { return a.fact < b.fact; });
  const std::string empty = without_facts(hay);
  needle_tally tally(options, tokens, "one", selector);
  const run::context_id base = reader.create(tokens + spare_tokens);
  std::uint64_t read = 0;
  for (const asked_needle& needle : hay.needles) {
    const std::uint64_t before = needle.fact / reader.alignment() * reader.alignment();
    reader.read(base, empty, read, before);
    read = std::max(read, before);
    std::string text = empty;
    text.replace(needle.fact, needle.fact_end - needle.fact, hay.text, needle.fact,
                 needle.fact_end - needle.fact);
    const run::context_id own = read == 0 ? reader.create(tokens + spare_tokens)
                                          : reader.fork(base, read, tokens + spare_tokens);
    reader.read(own, text, read, text.size());
    tally.ask(reader, own, text.size(), needle);
    reader.release(own);
  }
  reader.release(base);
  return tally.take();
}

void append(std::vector<needle_result>& to, std::vector<needle_result> from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

}  // namespace

std::vector<needle_result> run_needles(const needle_options& options) {
  if (options.depths == 0 || options.keys == 0) {
    throw std::invalid_argument("needles: 0 depths or keys ask nothing; give at least 1");
  }
  const auto model = decoder::model::load(options.model, {.threads = options.threads});
  std::vector<needle_result> results;
  for (const std::uint64_t tokens : options.tokens) {
    for (const std::string& selector : options.selectors) {
      const auto tell = [&](const char* what) {
        if (options.progress) {
          options.progress(fmt::format("{} tokens, {}: {}", tokens, selector, what));
        }
      };
      const bool one_too = tokens <= options.most_one_key_tokens;
      // With one needle three contexts live at a time: the base, a text off it, a question.
      const std::string sample = make_haystack(options, tokens, 1, options.seed).text;
      needle_reader reader(options, *model, selector, (one_too ? 3 : 2) * tokens, sample);
      tell("many needles");
      append(results, ask_many(options, reader, tokens, selector));
      if (one_too) {
        tell("one needle");
        append(results, ask_one(options, reader, tokens, selector));
      }
    }
  }
  return results;
}

}  // namespace kvtier::eval
