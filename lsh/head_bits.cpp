#include "lsh/head_bits.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace kvtier::lsh {

std::uint32_t head_bits::at(std::uint32_t layer, std::uint32_t kv_head) const {
  const std::size_t place = std::size_t{layer} * kv_heads + kv_head;
  if (kv_head >= kv_heads || place >= bits.size()) {
    throw std::invalid_argument("bits per head: layer " + std::to_string(layer) + ", KV head " +
                                std::to_string(kv_head) + " is not in the table of " +
                                std::to_string(bits.size()) + " heads, " +
                                std::to_string(kv_heads) + " a layer");
  }
  return bits[place];
}

void head_bits::check() const {
  if (kv_heads == 0 ? !bits.empty() : bits.size() % kv_heads != 0) {
    throw std::invalid_argument("bits per head: " + std::to_string(bits.size()) +
                                " entries are no whole layers of " + std::to_string(kv_heads) +
                                " KV heads");
  }
  const auto bad = std::find_if(bits.begin(), bits.end(),
                                [](std::uint8_t number) { return number != 1 && number != 2; });
  if (bad != bits.end()) {
    const auto place = static_cast<std::size_t>(bad - bits.begin());
    throw std::invalid_argument("bits per head: layer " + std::to_string(place / kv_heads) +
                                ", KV head " + std::to_string(place % kv_heads) + " has " +
                                std::to_string(*bad) + "; there are 1 and 2");
  }
}

}  // namespace kvtier::lsh
