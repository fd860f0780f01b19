#!/usr/bin/env bash
# Checks kvtier on an NVIDIA GPU: builds the release preset, packs the device suite and the demo with all that
# they need, and runs that here; or only packs, to be run elsewhere. Without a GPU it says so and ends well.
#
#   tools/gpu_check.sh                 pack into a temporary folder and run it; results go to build/gpu_check_results
#   tools/gpu_check.sh --pack [DIR]    pack into DIR (default build/gpu_check): copy it to a machine with a GPU and
#                                      glibc 2.36 or newer, with python3, and run DIR/run.sh there
set -euo pipefail
invoked_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
usage() {
  sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

if [[ ${1:-} != "" && ${1:-} != --pack || $# -gt 2 ]]; then
  usage
fi
tools/setup.sh release kvtier test_gpu test_gpu_parallel test_gpu_cuda bench_gpu
if [[ ${1:-} == --pack ]]; then
  folder=${2:-$PWD/build/gpu_check}
  [[ $folder == /* ]] || folder=$invoked_in/$folder
  exec python3 -B tools/python/gpu_pack.py --build build/release "$folder"
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -B tools/python/gpu_pack.py --build build/release "$folder"
"$folder/run.sh" build/gpu_check_results
