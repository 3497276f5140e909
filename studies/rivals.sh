#!/usr/bin/env bash
# Rivals with as many trials as ours, and parts given to each other (studies/rivals.md): trials by stream error and
# then by loss on the six documents that chose ours (set_aside.sh), judged on its fifteen others; the page's tables and figure.
#   studies/rivals.sh [DIR]   default: build/rivals; what DIR holds is not made again
# THREADS is the number of threads (1). A document takes one to three minutes of a core, a replay of all trials one.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/rivals}")
ready_for_two_models
documents_where "$dir/documents" 'NR % 6 == 1 && NR <= 31'
study_two_models "$dir/parts" rivals --parts
mapfile -t trials < <(finding rivals --trials)
for trace in "$dir"/parts/*/traces/*.h5; do
  target=$dir/screened/$(basename "$(dirname "$(dirname "$trace")")")/$(basename "$trace" .h5).nc
  mkdir -p "$(dirname "$target")"
  [ -e "$target" ] || "$KVSIM_BIN" replay "$trace" -o "$target" --threads "${THREADS:-1}" -q "${trials[@]}"
done
study_two_models "$dir/finalists" rivals --finalists "$dir"
documents_where "$dir/documents" 'NR % 6 == 3 || NR % 6 == 5'
study_two_models "$dir/judged" rivals --judged "$dir"
finding rivals "$dir" -o studies
finding pages
