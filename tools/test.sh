#!/usr/bin/env bash
# Sets up a fresh Debian 12, builds the release preset and runs every test. Arguments go to ctest, e.g.
#   tools/test.sh -L tests/cpu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh release
ctest --preset release "$@"
