#!/usr/bin/env bash
# Where the order of policies holds (studies/order.md): generated texts, 512 later tokens, all presets on both models;
# the page's tables and figure.
#   studies/order.sh [DIR]   default: build/order; what DIR holds is not made again
# THREADS is the number of threads (1). A text takes two to four minutes of a core.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/order}")
ready_for_two_models
finding generated "$dir/texts"
while IFS=$'\t' read -r experiment documents; do
  if [ -n "$documents" ]; then
    documents_where "$dir/documents" "$documents"
  else
    texts=(--texts "$dir/texts/generated")
  fi
  study_two_models "$dir/$experiment" order --options "$experiment"
done < <(finding order --experiments)
finding order "$dir" -o studies
finding pages
