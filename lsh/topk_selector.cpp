#include "lsh/topk_selector.hpp"

#include "lsh/heaviest_tokens.hpp"
#include "lsh/key_scores.hpp"
#include "lsh/row_budget.hpp"
#include "lsh/selector_checks.hpp"

namespace kvtier::lsh {
namespace {

class topk_selection final : public query_selection {
 public:
  topk_selection(std::uint32_t budget_ppm, std::span<const tile_entry> tiles,
                 const selector_query& query)
      : budget_ppm_(budget_ppm), scores_("topk", tiles, query) {}

  void see(std::uint32_t position, const std::byte* const* rows, element_type element) override {
    scores_.see(position, rows, element);
  }

  selection choose(cpu::task_arena* helpers) override {
    if (scores_.tokens() == 0) {
      return selection_of({}, scores_);
    }
    const std::uint64_t rows = rows_of_budget(budget_ppm_, scores_.tiles().size());
    return selection_of(take_heaviest(scores_, scores_.masses(helpers), rows, helpers), scores_);
  }

 private:
  std::uint32_t budget_ppm_;
  key_scores scores_;
};

std::uint32_t checked_dim(const selector_config& options, std::uint32_t head_dim) {
  check_selector(options, head_dim);
  return head_dim;
}

}  // namespace

topk_selector::topk_selector(const selector_config& options, std::uint32_t head_dim)
    : budget_ppm_(options.budget_ppm), head_dim_(checked_dim(options, head_dim)) {}

void topk_selector::index_tile(const tile_content&, std::byte*) const {}

std::unique_ptr<query_selection> topk_selector::begin(std::span<const tile_entry> tiles,
                                                      const selector_query& query) const {
  check_query(query, head_dim_);
  return std::make_unique<topk_selection>(budget_ppm_, tiles, query);
}

}  // namespace kvtier::lsh
