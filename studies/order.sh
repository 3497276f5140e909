#!/usr/bin/env bash
# Where the order of policies holds (studies/order.md): generated texts, longer answers and prompts, all presets, parts, shapes and the
# papers' claims on both models; the page's tables and figure, and those of other pages that name the second model.
#   studies/order.sh [DIR]   default: build/order; what DIR holds is not made again
# THREADS is the number of threads (1). A text takes two to ten minutes of a core.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/order}")
ready_for_two_models
finding generated "$dir/texts"
while IFS=$'\t' read -r experiment names documents; do
  read -r -a models <<<"$names"
  if [ -n "$documents" ]; then
    documents_where "$dir/documents" "$documents"
  else
    texts=(--texts "$dir/texts/generated")
  fi
  study_models "$dir/$experiment" order --options "$experiment"
done < <(finding order --experiments)
finding order "$dir" -o studies
finding pages
