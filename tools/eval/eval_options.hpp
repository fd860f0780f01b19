/// The flags of `kvtier eval`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lsh/selector.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
}

namespace kvtier::eval {

/// As given; the parser checks numbers and selectors, the rest where it is used.
struct eval_options {
  std::vector<std::string> data;
  std::vector<std::uint64_t> tokens;  ///< empty: default_tokens
  std::vector<std::string> selectors;
  bool needle = false;
  std::uint32_t depths = 5, keys = 40;
  std::uint64_t one_key_tokens = 16384;
  std::vector<double> budgets{0.02};
  std::uint32_t seeds = 16, hash_seeds = 4;
  std::uint64_t seed = 0;
  std::uint32_t cases = 2, queries = 16;
  std::uint32_t sinks = 4, recent = 64;
  double disk = 0.0;
  bool no_window_mass = false, as_given = false, per_head = false, quiet = false;
  std::string models, text;
  std::uint32_t threads = 0;
  std::string json, html;
};

/// What --tokens is if it is not given.
std::vector<std::uint64_t> default_tokens(bool needle);

/// Declares the flags on `command`; parsing fills `options`, which must outlive the parser.
void add_flags(CLI::App& command, eval_options& options);

}  // namespace kvtier::eval
