#!/usr/bin/env bash
# Sets up a fresh Debian 12, builds the kvtier command and shows it at work: 20 questions about a long text,
# with the KV cache on the device and then spread over device, host RAM and disk. Takes a few minutes.
#
#   tools/demo.sh [--tokens N] [--facts N] [--seed N]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
tools/setup.sh release kvtier
exec python3 tools/python/demo.py --binary build/release/bin/kvtier --model tests/data/needle \
  --work build/demo "$@"
