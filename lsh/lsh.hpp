/// lsh/: what decides which offloaded tokens are read: selectors, and the token indexes they score.
///
/// Lives here: the selector's configuration. Token indexes (sketches, MagicPIG tables, FAISS) come
/// with sampled attention. May depend on: cpu/.
#pragma once

#include "lsh/selector.hpp"
