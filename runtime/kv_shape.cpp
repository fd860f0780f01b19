#include "runtime/kv_shape.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kvtier {
namespace {

constexpr std::uint32_t max_layers = 4096;
constexpr std::uint32_t max_kv_heads = 1024;
constexpr std::uint32_t max_group = 8;

[[noreturn]] void refuse(std::string_view field, const std::string& value,
                         std::string_view supported) {
  throw std::invalid_argument("kv_shape." + std::string(field) + " is " + value +
                              "; supported: " + std::string(supported));
}

void check_range(std::string_view field, std::uint32_t value, std::uint32_t most) {
  if (value == 0 || value > most) {
    refuse(field, std::to_string(value), "1 to " + std::to_string(most));
  }
}

// A context that nobody can store must not wrap round to one that fits.
std::uint64_t saturating_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::uint64_t>::max()
                                                : product;
}

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::uint64_t>::max() : sum;
}

}  // namespace

std::uint64_t kv_shape::sequence_bytes(std::uint64_t tokens) const {
  std::uint64_t rows = 0;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const layer_kind its = kind(layer);
    rows =
        saturating_add(rows, its.sliding() ? std::min<std::uint64_t>(tokens, its.window) : tokens);
  }
  return saturating_multiply(rows, token_bytes());
}

void kv_shape::validate() const {
  check_range("layers", layers, max_layers);
  check_range("kv_heads", kv_heads, max_kv_heads);
  if (query_heads == 0 || query_heads % kv_heads != 0 || query_heads / kv_heads > max_group) {
    refuse("query_heads", std::to_string(query_heads),
           "1 to " + std::to_string(max_group) + " times kv_heads (" + std::to_string(kv_heads) +
               "), a multiple of it");
  }
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) {
    refuse("head_dim", std::to_string(head_dim), "64, 128, 256");
  }
  if (element != element_type::bf16 && element != element_type::fp16 &&
      element != element_type::fp32) {
    refuse("element", std::to_string(static_cast<int>(element)), "bf16, fp16, fp32");
  }
  if (!kinds.empty() && kinds.size() != layers) {
    refuse("kinds", "a list of " + std::to_string(kinds.size()),
           "one entry per layer (" + std::to_string(layers) + "), or none when all are full");
  }
}

}  // namespace kvtier
