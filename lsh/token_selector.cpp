#include "lsh/token_selector.hpp"

#include <stdexcept>

#include "cpu/isa.hpp"
#include "lsh/selector_checks.hpp"
#include "lsh/sketch_selector.hpp"
#include "lsh/topk_selector.hpp"

namespace kvtier::lsh {

std::vector<float> mean_of_keys(std::span<const float> keys, std::uint32_t head_dim) {
  std::vector<double> sums(head_dim, 0.0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    sums[i % head_dim] += double{keys[i]};
  }
  const double tokens = static_cast<double>(keys.size() / head_dim);
  std::vector<float> mean;
  for (const double sum : sums) {
    mean.push_back(static_cast<float>(sum / tokens));
  }
  return mean;
}

std::unique_ptr<token_selector> make_token_selector(const selector_config& options,
                                                    std::uint32_t head_dim, std::uint64_t seed) {
  switch (options.kind) {
    case selector_kind::full:
    case selector_kind::none:
      return nullptr;
    case selector_kind::topk:
      return std::make_unique<topk_selector>(options, head_dim);
    case selector_kind::topp:
    case selector_kind::uniform:
    case selector_kind::oracle:
    case selector_kind::quest:
    case selector_kind::vattention:
    case selector_kind::lsh:
      break;
    case selector_kind::sketch:
      return std::make_unique<sketch_selector>(options, head_dim, seed, cpu::active_isa());
  }
  throw std::invalid_argument("selector: kind " + std::to_string(static_cast<int>(options.kind)) +
                              " is not known");
}

}  // namespace kvtier::lsh
