/// Texts whose hidden facts the needle model finds (tests/data/needle/README.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvtier::eval {

struct needle_text {
  std::string text;
  std::vector<std::uint64_t> answers;  ///< bytes at which the answers of the questions begin
  std::vector<std::uint64_t> facts;    ///< ... and at which the same answers stand in the facts
};

/// A text of exactly `bytes` bytes: `prose`, over and over, or made-up sentences where it is empty,
/// in which `questions` facts lie at random places of equal
/// parts, then a question for each fact, shuffled, with its answer. Seeded; one byte is one token.
/// Throws std::invalid_argument where the text has no room for the facts.
needle_text make_needle_text(std::uint64_t bytes, std::uint32_t questions, std::uint64_t seed,
                             std::string_view prose = {});

}  // namespace kvtier::eval
