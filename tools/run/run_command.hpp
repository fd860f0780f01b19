/// `kvtier run`: the batch job.
///
/// Lives here: flags, the input and output lines, the plan of shared prefixes, the batch scheduler
/// and the glue between decoder and runtime. May depend on: the public API of runtime/,
/// tools/decoder/. Nothing below the runtime.
#pragma once

#include <string>

#include "tools/run/run_options.hpp"

namespace kvtier::run {

/// What the command says about itself in summaries.
struct build_facts {
  std::string version;
  std::string isa;  ///< instruction set of the kernels that run
};

/// Runs the job and returns the exit code: 0 done (single lines may have failed: they say so in the
/// output), 1 the runtime failed for at least one line or no line succeeded, 128 + n stopped by
/// signal n after the results so far were written. Throws usage_error, decoder::model_error (both:
/// exit code 2), and std::runtime_error when the job itself broke.
int run(const run_options& options, const build_facts& facts);

}  // namespace kvtier::run
