/// Results sorted into what is shown together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/eval/evaluation.hpp"

namespace kvtier::eval {

/// The selector as asked for, or where that is not known as it came to be.
inline const std::string& asked_selector(const method_errors& one) {
  return one.asked.empty() ? one.selector : one.asked;
}

/// The tokens asked for, or where that is not known those offloaded.
inline std::uint64_t asked_tokens(const method_errors& one) {
  return one.asked_tokens == 0 ? one.tokens : one.asked_tokens;
}

/// The different values of `of` in order of first appearance.
template <typename Of> auto distinct(std::span<const method_errors> results, Of of) {
  std::vector<std::decay_t<decltype(of(results.front()))>> values;
  for (const method_errors& one : results) {
    if (std::find(values.begin(), values.end(), of(one)) == values.end()) {
      values.push_back(of(one));
    }
  }
  return values;
}

/// Results over the same data of the same length. Points into what it was made of.
struct data_group {
  std::string data;
  std::uint64_t tokens = 0;
  std::vector<const method_errors*> results;
};

/// In order of first appearance of the data, then of rising length.
std::vector<data_group> by_data(std::span<const method_errors> results);

/// Results of one selector at one budget and length, over data. Points into what it was made of.
struct selector_group {
  std::uint64_t tokens = 0;
  double budget = 0.0;
  std::string selector;
  std::vector<const method_errors*> results;

  /// Of the mean errors, as results_over_data has it; NaN if one is not known.
  double geometric_mean_error() const;
  /// The result with the largest mean error; null if none is known.
  const method_errors* worst() const;
  /// Over the results whose value is known; NaN: none.
  double mean(double method_errors::*value) const;
};

/// By rising length and budget, then in order of first appearance of the selector.
std::vector<selector_group> by_selector(std::span<const method_errors> results);

}  // namespace kvtier::eval
