#!/usr/bin/env bash
# Sets up a fresh Debian 12, builds the kvtier command and shows it at work: 50 questions about a text of 32 Ki
# tokens whose KV cache is spread over device, host RAM and disk, by selector. Takes a few minutes.
#
#   tools/demo.sh [--tokens N] [--facts N] [--seed N] [--device auto|host|cuda]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
tools/setup.sh release kvtier
exec python3 tools/python/demo.py --binary build/release/bin/kvtier --model tests/data/needle \
  --work build/demo "$@"
