/// Which contexts step next, and with how many of their tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tools/run/batch_engine.hpp"
#include "tools/run/batch_scheduler.hpp"

namespace kvtier::run {

/// Something to admit: a shared prefix or a prompt.
struct work_item {
  bool is_prefix = false;
  std::size_t index = 0;  ///< of the node or the prompt
};

/// What a context does next. Steps are of one phase.
enum class context_phase : std::uint8_t {
  reading,   ///< its prompt, exactly
  question,  ///< the rest of its prompt, with the selector
  decoding,
};

/// A context that reads its tokens or decodes.
struct active_context {
  work_item item;
  std::size_t prompt = 0;        ///< whose tokens it reads
  std::uint64_t goal = 0;        ///< tokens to read before it is ready
  std::uint64_t exact_goal = 0;  ///< of these, the first ones, which are read exactly
  bool all_exact = true;         ///< no step uses the selector; exact_goal = goal
  std::uint64_t length = 0;      ///< tokens it holds
  context_id context = 0;
  row_usage exact_rows;  ///< of the steps before the question
  batch_result result;

  context_phase phase() const {
    if (length < exact_goal) {
      return context_phase::reading;
    }
    return length < goal ? context_phase::question : context_phase::decoding;
  }
  bool exact() const { return all_exact || phase() == context_phase::reading; }
  /// New tokens that a step of its phase could take.
  std::uint64_t wanted() const;
};

/// A step to be tried: contexts by their place in the active list, and their new tokens.
struct step_choice {
  struct part {
    std::size_t active = 0;
    std::uint32_t tokens = 1;
  };
  std::vector<part> parts;
  std::optional<std::size_t> misfit = {};  ///< a context that no step can take, alone as it may be

  std::uint64_t tokens() const;
  /// Halves the contexts, or the tokens of the only one. False if it is down to one token.
  bool shrink();
};

/// All contexts of the first phase that any is in, as far as they share `chunk` tokens (decoding:
/// one each) and the engine can place them. `active` must not be empty.
step_choice choose_step(const batch_engine& engine, std::span<const active_context> active,
                        std::uint64_t chunk);

/// The parts of a step; `new_tokens` keeps what those that decode refer to.
std::vector<step_part> make_parts(const step_choice& choice, std::span<const batch_prompt> prompts,
                                  std::span<const active_context> active,
                                  std::vector<std::int32_t>* new_tokens);

}  // namespace kvtier::run
