#include "lsh/token_selector.hpp"

#include <stdexcept>

#include "cpu/isa.hpp"
#include "lsh/selector_checks.hpp"
#include "lsh/sketch_selector.hpp"
#include "lsh/topk_selector.hpp"

namespace kvtier::lsh {

std::unique_ptr<token_selector> make_token_selector(const selector_config& options,
                                                    std::uint32_t head_dim, std::uint64_t seed) {
  switch (options.kind) {
    case selector_kind::full:
    case selector_kind::none:
      return nullptr;
    case selector_kind::topk:
      return std::make_unique<topk_selector>(options, head_dim);
    case selector_kind::sketch:
      return std::make_unique<sketch_selector>(options, head_dim, seed, cpu::active_isa());
  }
  throw std::invalid_argument("selector: kind " + std::to_string(static_cast<int>(options.kind)) +
                              " is not known");
}

}  // namespace kvtier::lsh
