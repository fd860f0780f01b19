/// Results of the needle suite for people and programs.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

#include "tools/eval/needle_suite.hpp"

namespace kvtier::eval {

/// One line per result under a heading line.
std::string needle_table(std::span<const needle_result> results);

/// A list of objects, one per result.
void write_json(std::span<const needle_result> results, std::ostream& to);

/// A page with a heat map, depth by length, per selector, number of needles and kind of question.
void write_page(std::span<const needle_result> results, std::ostream& to);

}  // namespace kvtier::eval
