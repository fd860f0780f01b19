#include "lsh/selector_checks.hpp"

#include <stdexcept>
#include <string>

namespace kvtier::lsh {

void check_selector(const selector_config& options, std::uint32_t head_dim) {
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) {
    throw std::invalid_argument("selector \"" + to_string(options) + "\": head_dim " +
                                std::to_string(head_dim) +
                                " is not supported; there are 64, 128 and 256");
  }
  check_share("budget_ppm", options.budget_ppm);
}

std::uint32_t checked_head_dim(const selector_config& options, std::uint32_t head_dim) {
  check_selector(options, head_dim);
  return head_dim;
}

void check_share(const char* name, std::uint32_t ppm) {
  if (ppm < 1 || ppm > 1'000'000) {
    throw std::invalid_argument("selector: " + std::string(name) + " " + std::to_string(ppm) +
                                " is not between 1 and 1000000; 20000 is 2 %");
  }
}

void check_query(const selector_query& query, std::uint32_t head_dim) {
  if (query.heads < 1 || query.heads > 8) {
    throw std::invalid_argument("selector_query: heads " + std::to_string(query.heads) +
                                " is not between 1 and 8");
  }
  if (query.head_dim != head_dim) {
    throw std::invalid_argument("selector_query: head_dim " + std::to_string(query.head_dim) +
                                " is not the selector's " + std::to_string(head_dim));
  }
  if (query.values == nullptr) {
    throw std::invalid_argument("selector_query: values is null");
  }
}

}  // namespace kvtier::lsh
