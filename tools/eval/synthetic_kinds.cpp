#include "tools/eval/synthetic_kinds.hpp"

#include <algorithm>

namespace kvtier::eval {
namespace {

constexpr std::array<kind_recipe, 16> recipes{{
    {.name = "g1", .deviations = {1, 1, 1, 1}},
    {.name = "g2"},
    {.name = "g3", .deviations = {3, 3, 3, 3}},
    {.name = "g4", .deviations = {4, 4, 4, 4}},
    {.name = "gm", .deviations = {1, 2, 3, 4}, .common_query = .8F},
    {.name = "flat", .deviations = {.3F, .3F, .3F, .3F}},
    {.name = "needle", .deviations = {1.5F, 1.5F, 1.5F, 1.5F}},
    {.name = "sink"},
    {.name = "clust", .run_tokens = 50},
    {.name = "vk"},
    {.name = "vnorm", .value_norm_spread = .7F},
    {.name = "rope"},
    {.name = "tail", .key_norm_spread = .33F},
    {.name = "loc2", .run_tokens = 200},
    {.name = "loc3", .deviations = {3, 3, 3, 3}, .run_tokens = 200},
    {.name = "nomean", .value_mean = 0},
}};

constexpr auto kinds = [] {
  std::array<synthetic_kind, recipes.size()> made{};
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] = static_cast<synthetic_kind>(i);
  }
  return made;
}();

}  // namespace

const kind_recipe& recipe_of(synthetic_kind kind) noexcept {
  return recipes[static_cast<std::size_t>(kind)];
}

std::string_view to_string(synthetic_kind kind) noexcept { return recipe_of(kind).name; }

std::optional<synthetic_kind> parse_synthetic_kind(std::string_view name) noexcept {
  const auto* const found = std::find_if(
      kinds.begin(), kinds.end(), [&](synthetic_kind kind) { return to_string(kind) == name; });
  return found == kinds.end() ? std::nullopt : std::optional(*found);
}

std::span<const synthetic_kind> sampler_kinds() noexcept {
  return std::span(kinds).first(static_cast<std::size_t>(synthetic_kind::nomean));
}

std::string synthetic_kind_names() {
  std::string names;
  for (const kind_recipe& recipe : recipes) {
    names += (names.empty() ? "" : ", ") + std::string(recipe.name);
  }
  return names;
}

}  // namespace kvtier::eval
