#!/usr/bin/env bash
# Where the order of policies holds (studies/lengths.md): generated texts, 512 later tokens, a second reading in other
# chunks, 2304 and 4000 tokens; the page's tables and figure.
#   studies/lengths.sh [DIR]   default: build/lengths; what DIR holds is not made again
# THREADS is the number of threads (1). A text takes two minutes of a core, one of 4000 tokens twenty.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/lengths}")
ready_for_two_models
finding generated "$dir/texts"
while IFS=$'\t' read -r experiment documents; do
  if [ -n "$documents" ]; then
    documents_where "$dir/documents" "$documents"
  else
    texts=(--texts "$dir/texts/generated")
  fi
  study_two_models "$dir/$experiment" lengths --options "$experiment"
done < <(finding lengths --experiments)
finding lengths "$dir" -o studies
finding pages
