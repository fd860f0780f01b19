#include "tools/run/step_choice.hpp"

#include <algorithm>
#include <numeric>

namespace kvtier::run {
namespace {

/// New tokens per context that a step of all `chosen` can take; 0 = too many contexts.
std::uint64_t step_limit(const batch_engine& engine, std::span<const active_context> active,
                         std::span<const std::size_t> chosen) {
  std::uint64_t longest = 0;
  for (const auto i : chosen) {
    longest = std::max({longest, active[i].goal, active[i].length + 1});
  }
  const auto contexts = static_cast<std::uint32_t>(chosen.size());
  const auto placed = engine.max_step_tokens(contexts, longest);
  return active[chosen.front()].exact() ? placed
                                        : std::min(placed, engine.max_sampled_tokens(contexts));
}

/// A step of the first of `chosen` that share `budget` tokens; without parts if it cannot be
/// placed.
step_choice fill_step(const batch_engine& engine, std::span<const active_context> active,
                      std::span<const std::size_t> chosen, std::uint64_t budget) {
  const auto most = step_limit(engine, active, chosen);
  step_choice choice;
  for (std::size_t i = 0; i < chosen.size() && budget > 0 && most > 0; ++i) {
    const auto tokens = std::min({active[chosen[i]].wanted(), most, budget});
    choice.parts.push_back({chosen[i], static_cast<std::uint32_t>(tokens)});
    budget -= tokens;
  }
  return choice;
}

}  // namespace

std::uint64_t active_context::wanted() const {
  switch (phase()) {
    case context_phase::reading:
      return exact_goal - length;
    case context_phase::question:
      return goal - length;
    case context_phase::decoding:
      break;
  }
  return 1;
}

std::uint64_t step_choice::tokens() const {
  return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const part& one) { return sum + one.tokens; });
}

bool step_choice::shrink() {
  if (parts.size() > 1) {
    parts.resize((parts.size() + 1) / 2);
    return true;
  }
  if (parts.front().tokens > 1) {
    parts.front().tokens = (parts.front().tokens + 1) / 2;
    return true;
  }
  return false;
}

step_choice choose_step(const batch_engine& engine, std::span<const active_context> active,
                        std::uint64_t chunk) {
  auto phase = context_phase::decoding;
  for (const auto& one : active) {
    phase = std::min(phase, one.phase());
  }
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < active.size(); ++i) {
    if (active[i].phase() == phase) {
      candidates.push_back(i);
    }
  }
  // More contexts in a step leave each fewer tokens: take the number that reads most.
  step_choice best;
  std::uint64_t best_tokens = 0;
  for (auto contexts = candidates.size(); contexts > 0; contexts -= (contexts + 3) / 4) {
    const auto budget = phase == context_phase::decoding ? contexts : chunk;
    auto choice = fill_step(engine, active, {candidates.data(), contexts}, budget);
    if (const auto tokens = choice.tokens(); tokens > best_tokens) {
      best_tokens = tokens;
      best = std::move(choice);
    }
  }
  if (best_tokens == 0) {
    best.misfit = candidates.front();
  }
  return best;
}

std::vector<step_part> make_parts(const step_choice& choice, std::span<const batch_prompt> prompts,
                                  std::span<const active_context> active,
                                  std::vector<std::int32_t>* new_tokens) {
  std::vector<step_part> parts;
  new_tokens->clear();
  new_tokens->reserve(choice.parts.size());
  for (const auto& part : choice.parts) {
    const auto& one = active[part.active];
    auto& made = parts.emplace_back();
    made.context = one.context;
    made.position = one.length;
    made.exact = one.exact();
    if (one.phase() == context_phase::decoding) {
      new_tokens->push_back(one.result.tokens.back());
      made.tokens = {&new_tokens->back(), 1};
    } else {
      made.tokens = std::span(prompts[one.prompt].tokens).subspan(one.length, part.tokens);
    }
  }
  return parts;
}

}  // namespace kvtier::run
