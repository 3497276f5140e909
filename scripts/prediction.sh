#!/usr/bin/env bash
# Does the replay predict what the model loses? Remakes the numbers and figures of docs/prediction.md.
#   scripts/prediction.sh [DIR]     default: build/prediction; traces, results, figures
# KVSIM_BIN names the program (build/kvsim), PYTHON an interpreter with data/requirements.txt,
# LANES how many texts run at once (1), THREADS how many threads each has (1).
# What DIR already holds is not made again: an interrupted study is simply started again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kvsim=${KVSIM_BIN:-build/kvsim}
threads=${THREADS:-1}
python=${PYTHON:-$HOME/.cache/kvsim/torch/bin/python}
out=${1:-build/prediction}
mkdir -p "$out"

plan() { PYTHONPATH=data "$python" -c "import prediction_plan as p; print($1)"; }
all_kinds=$(plan '",".join(p.SEARCHED + p.SET_ASIDE)')
tokens=$(plan p.PROMPT_TOKENS) steps=$(plan p.STEPS) seed=$(plan p.SEED)
budgets=$(plan '",".join(map(str, p.BUDGETS))') metrics=$(plan '",".join(p.METRICS)')
policies=$(plan '" ".join("--policy " + one for one in p.EVICTION + p.HINDSIGHT)')

"$python" data/make_traces.py -o "$out" --kinds "$all_kinds" --prompt-tokens "$tokens" \
  --steps "$steps" --seed "$seed" --queries all --threads "$threads"

one_text() {
  local name=$out/${1}_${tokens}_$seed
  # shellcheck disable=SC2086  # a list of options
  [ -f "$name.nc" ] || "$kvsim" replay "$name.h5" $policies --budget "$budgets" \
    --metric "$metrics" --wo-steps 0 --save-keep --threads "$threads" -q -o "$name.nc"
  [ -f "$name.loop.nc" ] || "$python" data/closed_loop.py "$name.h5" "$name.nc" \
    -o "$name.loop.nc" --threads "$threads"
}

# Texts side by side: several processes of one thread use busy cores better than one of several.
running=0
for kind in ${all_kinds//,/ }; do
  one_text "$kind" &
  running=$((running + 1))
  if [ "$running" -ge "${LANES:-1}" ]; then wait -n; running=$((running - 1)); fi
done
while [ "$running" -gt 0 ]; do wait -n; running=$((running - 1)); done

"${XDG_CACHE_HOME:-$HOME/.cache}/kvsim/plots/bin/python" plots/prediction.py "$out" \
  -o "$out/figures" | tee "$out/prediction.txt"
