/// lsh/: what decides which offloaded tokens are read: selectors, and the token indexes they score.
///
/// Lives here: the selector's configuration, the seam `token_selector`, and behind it the
/// rotated-code sketches (sketch_*; logit_spread says how many bits a head needs), MagicPIG
/// (lsh_selector, simhash_*) and the baselines (*_selector); and attention over a selection with
/// its error sums (sampled_attention; value_slope and term_directions are what a sample teaches).
/// Sketch arithmetic that decides which tokens are read is integer, or a fixed sequence of IEEE
/// operations without fused multiply-add, so that a sample is the same on every instruction set and
/// thread count (tests/golden/sampler/sampler.md is the algorithm). May depend on: cpu/.
#pragma once

#include "lsh/sampled_attention.hpp"
#include "lsh/selector.hpp"
#include "lsh/token_selector.hpp"
