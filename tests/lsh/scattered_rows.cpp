#include "tests/lsh/scattered_rows.hpp"

#include <cstring>

namespace kvtier::test {

scattered_rows::scattered_rows(const tile_rows& all, std::uint32_t head_dim, element_type element,
                               const std::vector<std::uint32_t>& tokens) {
  const std::size_t half = head_dim * element_bytes(element);
  for (const std::uint32_t token : tokens) {
    const std::size_t guard = 16 * (1 + rows_.size() % 3);
    const std::size_t end_guard = rows_.size() % 2 * 64;  // without one the sanitizer watches
    const std::size_t bytes = guard + 2 * half + end_guard;
    memory_.push_back(std::make_unique<std::byte[]>(bytes));
    std::byte* const at = memory_.back().get();
    std::memset(at, 0xff, bytes);
    const std::size_t from = std::size_t{token} * head_dim;
    from_float(element, all.keys.data() + from, at + guard, head_dim);
    from_float(element, all.values.data() + from, at + guard + half, head_dim);
    rows_.push_back(at + guard);
  }
}

std::vector<std::uint32_t> tokens_of(std::uint32_t position) {
  std::vector<std::uint32_t> tokens;
  for (std::uint32_t i = 0; i < lsh::tile_tokens; ++i) {
    tokens.push_back(position * lsh::tile_tokens + i);
  }
  return tokens;
}

tile_rows rounded(const tile_rows& all, element_type element) {
  tile_rows made = all;
  for (std::vector<float>* values : {&made.keys, &made.values}) {
    std::vector<std::byte> bytes(values->size() * element_bytes(element));
    from_float(element, values->data(), bytes.data(), values->size());
    to_float(element, bytes.data(), values->data(), values->size());
  }
  return made;
}

}  // namespace kvtier::test
