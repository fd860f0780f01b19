/// The prompts of a job: read, tokenised, checked against the model, measured.
#pragma once

#include <cstddef>
#include <vector>

#include "tools/decoder/model_config.hpp"
#include "tools/decoder/tokenizer.hpp"
#include "tools/run/batch_scheduler.hpp"
#include "tools/run/prompt_file.hpp"
#include "tools/run/run_options.hpp"

namespace kvtier::run {

/// The input as read (texts and ids dropped), and of its good lines the prompts to run.
struct job_input {
  std::vector<prompt_line> lines;
  std::vector<batch_prompt> prompts;
  std::vector<std::size_t> line_of_prompt;  ///< index into lines
};

/// Reads --input. Throws usage_error if it cannot; lines that this model cannot take have `error`
/// set.
job_input prepare_input(const run_options& options, const decoder::tokenizer& words,
                        const decoder::model_config& model);

/// The most that can be in use at once: the longest contexts that --max-batch lets run together,
/// but no more than all distinct tokens.
job_size measure_job(const std::vector<batch_prompt>& prompts, const run_options& options);

}  // namespace kvtier::run
