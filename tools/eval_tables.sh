#!/usr/bin/env bash
# Rebuilds the tables of README's "Measured" that `kvtier eval` makes: eval_tables.sh DIR [table...]
# Each table leaves DIR/<table>.txt, .json and .html. All but `needles` take some ten minutes on two cores;
# `needles`, exact prefill of 128 Ki tokens, takes half an hour and is made only if it is named.
set -euo pipefail
if [[ $# -lt 1 ]]; then
  echo "usage: $0 DIR [table...]; tables: kinds large needle_layers trained coverage coverage_unknown_window" \
    "targets drift disk bits needles" >&2
  exit 2
fi
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh release
kvtier=build/release/bin/kvtier
gauss=synthetic:g1,synthetic:g2,synthetic:g3,synthetic:g4,synthetic:gm,synthetic:flat,synthetic:needle
kinds15=$gauss,synthetic:sink,synthetic:clust,synthetic:vk,synthetic:vnorm,synthetic:rope,synthetic:tail
kinds15+=,needle:layer1,needle:layer3

# table NAME FLAG...
table() {
  echo "$1"
  "$kvtier" eval -q --json "$out/$1.json" --html "$out/$1.html" "${@:2}" >"$out/$1.txt"
}

# The 15 kinds of sampler.md, section 3, at 2 % of 16 Ki tokens, every method.
kinds() {
  table kinds --data "$kinds15" --cases 4 --queries 12 --seeds 32 --selector sketch:bits=2 \
    --selector sketch:bits=2,estimator=ht --selector sketch:bits=1 --selector lsh:k=10,l=150 --selector topk \
    --selector topp --selector vattention --selector uniform --selector oracle --selector quest
}
large() {
  table large --data "$kinds15" --tokens 131072 --cases 2 --queries 8 --seeds 16 --hash-seeds 2 \
    --selector sketch:bits=2 --selector sketch:bits=2,estimator=ht --selector sketch:bits=1 \
    --selector lsh:k=10,l=150 --selector topk --selector topp --selector vattention
}
needle_layers() {
  table needle_layers --data needle --tokens 16384,65536 --queries 16 --seeds 32 --per-head \
    --selector sketch:bits=2 --selector sketch:bits=2,estimator=ht --selector lsh:k=10,l=150 --selector topk
}
# Section 11, and an error target with two caps.
trained() {
  table trained --data trained --seeds 64 --selector sketch:bits=2 --selector sketch:bits=1 \
    --selector sketch:bits=2,estimator=ht --selector sketch:bits=1,estimator=ht --selector topk \
    --selector uniform --selector vattention --selector oracle
  table trained_magic_pig --data trained --as-given --selector lsh:k=10,l=150
  table trained_target --data trained --as-given --per-head --selector sketch:budget=0.0157,epsilon=0.1 \
    --selector sketch:budget=0.0157,epsilon=0.1,cap=0.1
}
coverage() {
  table coverage --data "$kinds15" --cases 3 --queries 3 --seeds 1000 --budget 0.0025,0.005,0.01,0.02,0.05 \
    --selector sketch:bits=2 --selector sketch:bits=1
}
coverage_unknown_window() {
  table coverage_unknown_window --no-window-mass --data "$kinds15" --cases 3 --queries 3 --seeds 1000 \
    --budget 0.01,0.02,0.05 --selector sketch:bits=2
}
targets() {
  for epsilon in 0.05 0.1; do
    table "target_$epsilon" --as-given --data "$kinds15" --cases 3 --queries 6 --seeds 32 \
      --selector "sketch:budget=0.0157,epsilon=$epsilon"
  done
}
drift() {
  local data
  data=$(sed 's/,needle:layer[13]//g; s/\(synthetic:[a-z0-9]*\)/\1+drift=48/g' <<<"$kinds15")
  table drift --data "$data" --cases 1 --seeds 8 --selector sketch --selector sketch:estimator=ht
  table drift_disk --data "$data" --cases 1 --seeds 8 --disk 1 --budget 0.02,0.1 --selector sketch
}
disk() {
  table disk --data synthetic:all --tokens 32768 --cases 4 --disk 1 --budget 0.01,0.02,0.05,0.1 \
    --selector sketch:bits=2 --selector sketch:bits=1
}
# What one bit costs heads whose logits scatter so far.
bits() {
  local data="" kind deviation
  for kind in g2 gm clust vk vnorm rope tail loc2 nomean; do
    for deviation in 0.3 0.5 0.75 1 1.25; do
      data+=${data:+,}synthetic:$kind+sd=$deviation
    done
  done
  table bits --data "$data" --cases 6 --seeds 64 --budget 0.005,0.02,0.05 --selector sketch:bits=1 \
    --selector sketch:bits=2
  table bits_disk --data "$data" --cases 4 --seeds 16 --disk 1 --budget 0.02,0.1 \
    --selector sketch:bits=1 --selector sketch:bits=2
}
needles() {
  table needles --needle --tokens 4096,8192,16384,32768,65536,131072 --selector sketch:budget=0.02
}

tables=("$@")
if [[ $# -eq 0 ]]; then
  tables=(kinds large needle_layers trained coverage coverage_unknown_window targets drift disk bits)
fi
for name in "${tables[@]}"; do
  case $name in
    kinds | large | needle_layers | trained | coverage | coverage_unknown_window | targets | drift | disk | bits | \
      needles)
      "$name" ;;
    *) echo "$0: no table '$name'; run it without arguments for the list" >&2; exit 2 ;;
  esac
done
