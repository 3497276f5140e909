#!/usr/bin/env bash
# Tasks on the second model (studies/tasks.md): the page's tables of Gemma 3 270M. Those of the first are of a study that
# was contributed.
#   studies/tasks.sh [DIR]   default: build/tasks; what DIR holds is not made again
# THREADS is the number of threads (1). It takes half an hour of a core.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/tasks}")
ready_for_two_models
mapfile -t options < <(finding tasks --options)
"$KVSIM_BIN" study --model gemma3-270m -o "$dir" --threads "${THREADS:-1}" "${options[@]}" </dev/null
finding tasks "$dir" -o studies
finding pages
