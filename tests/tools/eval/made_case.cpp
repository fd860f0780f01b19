#include "tests/tools/eval/made_case.hpp"

#include <vector>

#include "tests/support/reference_attention.hpp"

namespace kvtier::test {
namespace {

/// `values` rounded to `type`.
std::vector<float> rounded(element_type type, std::vector<float> values) {
  std::vector<std::byte> bytes(values.size() * element_bytes(type));
  from_float(type, values.data(), bytes.data(), values.size());
  to_float(type, bytes.data(), values.data(), values.size());
  return values;
}

}  // namespace

eval::head_case made_case(const made_case_options& options) {
  const std::size_t numbers = options.tokens * options.head_dim;
  eval::head_case made;
  made.data = "made";
  made.layer = 3;
  made.kv_head = 1;
  made.heads = options.heads;
  made.head_dim = options.head_dim;
  made.element = options.element;
  made.keys = normal_values_of(options.element, numbers, options.seed);
  const std::vector<float> mean = normal_values(options.head_dim, options.seed + 1, .7F);
  std::vector<float> values = normal_values(numbers, options.seed + 2);
  for (std::size_t i = 0; i < numbers; ++i) {
    values[i] += mean[i % options.head_dim];
  }
  made.values = rounded(options.element, std::move(values));
  for (std::uint32_t i = 0; i < options.queries; ++i) {
    made.queries.push_back({normal_values(std::size_t{options.heads} * options.head_dim,
                                          options.seed + 3 + i, options.deviation),
                            options.tokens, options.tokens + 7 * i});
  }
  return made;
}

}  // namespace kvtier::test
