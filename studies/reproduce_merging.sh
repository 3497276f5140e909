#!/usr/bin/env bash
# Remakes the figures and numbers about merging, schedules and quantisation of studies/reproduction/keepkv.md.
#   studies/reproduce_merging.sh [TRACE...]   default: data/sample.h5; results and figures in
#                                             build/reproduction/
# KVSIM_BIN names the program (default: build/kvsim), LAYERS the layers (default: those of the sample),
# KVSIM_OUT another folder.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$KVSIM_ROOT"
kvsim=${KVSIM_BIN:-build/kvsim}
layers=${LAYERS:-0,5,10,15,18,20,24,29}
out=${KVSIM_OUT:-build/reproduction}
traces=("$@")
[ ${#traces[@]} -gt 0 ] || traces=(data/sample.h5)
mkdir -p "$out"

# What is there and newer than its trace, the program and this script is not computed again.
replay() { # TRACE NAME [OPTION...]
  local trace=$1 file=$out/$2.nc
  shift 2
  [[ $file -nt $trace && $file -nt $kvsim && $file -nt studies/reproduce_merging.sh ]] ||
    "$kvsim" replay "$trace" --layers "$layers" --overwrite -q -o "$file" "$@"
}
draw() { # NAME FOLDER FIGURES
  finding plot "$out/$1.nc" -o "$out/$2" --only "$3" --budget 0.3 --overwrite
}

# Attention sag, bounds by delay, prediction of scores. The bound of keepkv:bias is about slots that
# one query head reads. D2O needs every prompt query.
merges() {
  local policies=(--policy convex --policy cam --policy keepkv --policy keepkv,score_estimate=last
    --policy keepkv:code --policy keepkv:bias
    --policy keepkv:bias,granularity=query,group=none
    --policy keepkv,granularity=query,group=none
    --policy keepkv,granularity=query,group=none,score_estimate=last)
  grep -q 'stored: 0-' <<<"$("$kvsim" inspect "$1")" && policies+=(--policy d2o)
  replay "$1" "$2.merges" "${policies[@]}" --budget 0.3 --wo-steps 0 \
    --metric bound,prediction_error,value_part,mass_part
  draw "$2.merges" "$2" merge_bound,prediction_error
  "$kvsim" plot "$out/$2.merges.nc" -o "$out/$2" --only attention_sag --budget 0.3 --overwrite \
    --policy convex --policy cam --policy keepkv --policy keepkv:bias \
    $([ ${#policies[@]} -gt 18 ] && echo --policy d2o)
}

# The same selection, evicted or merged.
same_selection() {
  local policies=() selection merge
  for selection in snapkv restkv; do
    policies+=(--policy "$selection")
    for merge in convex d2o keepkv keepkv-bias value-fold; do
      policies+=(--policy "$selection,merge=$merge")
    done
  done
  replay "$1" "$2.selection" "${policies[@]}" --budget 0.1,0.2,0.3,0.5,0.7 --wo-steps 0
  draw "$2.selection" "$2" merging_budget
}

# Compressed anew now and then, from the full cache.
periods() {
  local policies=() base period
  for base in snapkv keepkv:bias keepkv:bias,score_estimate=last; do
    policies+=(--policy "$base")
    for period in 4 16 64; do policies+=(--policy "$base,schedule=periodic,period=$period"); done
  done
  replay "$1" "$2.periodic" "${policies[@]}" --budget 0.3 --wo-steps 0
  draw "$2.periodic" "$2" periodic
}

# Fewer entries against fewer bits.
bits() {
  local policies=() base count
  for base in snapkv keepkv:bias; do
    policies+=(--policy "$base")
    for count in 8 4 2; do
      policies+=(--policy "$base,quantize=kivi,quant_bits=$count,quant_residual=32")
    done
  done
  replay "$1" "$2.bits" "${policies[@]}" --budget 0.1,0.2,0.3,0.5,0.7,1.0 --wo-steps 0
  draw "$2.bits" "$2" memory_error
}

# Roofline of a decode step; numbers of an H100 (3.35 TB/s, 989 Tflop/s in bfloat16).
latency() {
  replay "$1" "$2.latency" --policy snapkv \
    --policy snapkv,quantize=kivi,quant_bits=4,quant_residual=32 --policy keepkv \
    --budget 0.1,0.3,128 --wo-steps 1 --bandwidth 3.35e12 --peak 9.89e14
  draw "$2.latency" "$2" decode_latency
}

for part in merges same_selection periods bits latency; do
  for trace in "${traces[@]}"; do
    "$part" "$trace" "$(basename "$trace" .h5)"
  done
done
