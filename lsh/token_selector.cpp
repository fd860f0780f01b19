#include "lsh/token_selector.hpp"

#include <stdexcept>

#include "cpu/isa.hpp"
#include "lsh/faiss_selector.hpp"
#include "lsh/lsh_selector.hpp"
#include "lsh/oracle_selector.hpp"
#include "lsh/quest_selector.hpp"
#include "lsh/selector_checks.hpp"
#include "lsh/sketch_selector.hpp"
#include "lsh/topk_selector.hpp"
#include "lsh/topp_selector.hpp"
#include "lsh/uniform_selector.hpp"
#include "lsh/vattention_selector.hpp"

namespace kvtier::lsh {

std::vector<float> mean_of_keys(std::span<const float> keys, std::uint32_t head_dim) {
  std::vector<double> sums(head_dim, 0.0);
  for (std::size_t row = 0; row < keys.size(); row += head_dim) {
    for (std::size_t d = 0; d < head_dim; ++d) {
      sums[d] += double{keys[row + d]};
    }
  }
  const std::size_t tokens = keys.size() / head_dim;
  std::vector<float> mean;
  mean.reserve(head_dim);
  for (const double sum : sums) {
    mean.push_back(static_cast<float>(sum / static_cast<double>(tokens)));
  }
  return mean;
}

std::optional<selection> query_selection::grow(std::span<const double>, cpu::task_arena*) {
  return std::nullopt;
}

std::unique_ptr<token_selector> make_token_selector(const selector_config& options,
                                                    std::uint32_t head_dim, std::uint64_t seed,
                                                    const head_bits& bits) {
  if (options.kind != selector_kind::sketch && !bits.empty()) {
    throw std::invalid_argument("selector \"" + to_string(options) + "\": a table of bits for " +
                                std::to_string(bits.bits.size()) +
                                " heads is given, which only sketch:bits=auto takes");
  }
  switch (options.kind) {
    case selector_kind::full:
    case selector_kind::none:
      return nullptr;
    case selector_kind::topk:
      return std::make_unique<topk_selector>(options, head_dim);
    case selector_kind::topp:
      return std::make_unique<topp_selector>(options, head_dim);
    case selector_kind::uniform:
      return std::make_unique<uniform_selector>(options, head_dim, seed);
    case selector_kind::oracle:
      return std::make_unique<oracle_selector>(options, head_dim, seed);
    case selector_kind::quest:
      return std::make_unique<quest_selector>(options, head_dim);
    case selector_kind::vattention:
      return std::make_unique<vattention_selector>(options, head_dim, seed);
    case selector_kind::faiss:
      return make_faiss_selector(options, head_dim);
    case selector_kind::lsh:
      return std::make_unique<lsh_selector>(options, head_dim, cpu::active_isa());
    case selector_kind::sketch:
      return std::make_unique<sketch_selector>(options, head_dim, seed, cpu::active_isa(), bits);
  }
  throw std::invalid_argument("selector: kind " + std::to_string(static_cast<int>(options.kind)) +
                              " is not known");
}

}  // namespace kvtier::lsh
