#!/usr/bin/env bash
# Remakes every figure and number of docs/reproduction.md.
#   scripts/reproduce.sh [TRACE...]     default: data/sample.h5; results and figures in
#                                       build/reproduction/
# KVSIM_BIN names the program (default: build/kvsim, as scripts/quickstart.sh makes it).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kvsim=${KVSIM_BIN:-build/kvsim}
out=build/reproduction
traces=("$@")
[ ${#traces[@]} -gt 0 ] || traces=(data/sample.h5)

mkdir -p "$out"
"$kvsim" theory | tee "$out/theory.txt"
"$kvsim" theory --json >"$out/theory.json"
"$kvsim" theory --dwell 8 --json >"$out/theory_dwell.json"
"$kvsim" plot "$out/theory.json" "$out/theory_dwell.json" -o "$out/theory" --overwrite

for trace in "${traces[@]}"; do
  name=$(basename "$trace" .h5)
  # Fragility: every query of the window alone, their mean, the defensive step, hindsight.
  "$kvsim" replay "$trace" --fragility --wo-steps 16 -o "$out/$name.fragility.nc" --overwrite |
    tee "$out/$name.fragility.txt"
  "$kvsim" plot "$out/$name.fragility.nc" -o "$out/$name" --only fragility --overwrite
  # What was lost at the worst step of SnapKV.
  "$kvsim" replay "$trace" --policy snapkv --budget 0.5 --wo-steps 16 --save-keep -q \
    -o "$out/$name.kept.nc" --overwrite
  "$kvsim" explain "$out/$name.kept.nc" --trace "$trace" | tee "$out/$name.explain.txt"
  "$kvsim" explain "$out/$name.kept.nc" --trace "$trace" --json >"$out/$name.explain.json"
  "$kvsim" plot "$out/$name.explain.json" -o "$out/$name" --overwrite
  # Eviction bias, with kvpress's forms, on traces with spans; H2O where every prompt query is stored.
  says=$("$kvsim" inspect "$trace")
  grep -q '^span ' <<<"$says" || continue
  policies=(--policy snapkv:kvpress --policy snapkv:kvpress,constrain=fair --policy tova:kvpress
    --policy knorm:kvpress --policy streaming:kvpress)
  grep -q 'stored: 0-' <<<"$says" && policies+=(--policy h2o:kvpress)
  "$kvsim" replay "$trace" "${policies[@]}" --budget 0.1:0.9:0.1 --wo-steps 16 \
    -o "$out/$name.bias.nc" --csv "$out/$name.bias.csv" --overwrite
  "$kvsim" plot "$out/$name.bias.nc" -o "$out/$name" --only keep_rate,keep_rate_layers --overwrite
done
