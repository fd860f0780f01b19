#include "lsh/topk_selector.hpp"

#include "lsh/heaviest_tokens.hpp"
#include "lsh/row_budget.hpp"
#include "lsh/selector_checks.hpp"

namespace kvtier::lsh {
namespace {

class topk_selection final : public key_selection {
 public:
  topk_selection(std::uint32_t budget_ppm, std::span<const tile_entry> tiles,
                 const selector_query& query)
      : key_selection("topk", tiles, query), budget_ppm_(budget_ppm) {}

  selection choose(cpu::task_arena* helpers) override {
    if (scores().tokens() == 0) {
      return selection_of({}, scores());
    }
    const std::uint64_t rows = rows_of_budget(budget_ppm_, scores().tiles().size());
    return selection_of(take_heaviest(scores(), scores().masses(helpers), rows, helpers), scores());
  }

 private:
  std::uint32_t budget_ppm_;
};

}  // namespace

topk_selector::topk_selector(const selector_config& options, std::uint32_t head_dim)
    : budget_ppm_(options.budget_ppm), head_dim_(checked_head_dim(options, head_dim)) {}

std::unique_ptr<query_selection> topk_selector::begin(std::span<const tile_entry> tiles,
                                                      const selector_query& query) const {
  check_query(query, head_dim_);
  return std::make_unique<topk_selection>(budget_ppm_, tiles, query);
}

}  // namespace kvtier::lsh
