#!/usr/bin/env bash
# Fewer entries or fewer bits (studies/quantizing.md): documents as people write them, their losses with the
# policies of findings/quantizing.py on both models, and the page's tables and figure.
#   studies/quantizing.sh [DIR]   default: build/quantizing; what DIR holds is not made again
# THREADS is the number of threads (1). Every sixth document is taken; one takes a minute of a core.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/quantizing}")
ready_for_two_models
documents_where "$dir/documents" 'NR % 6 == 1'
for part in all some; do
  study_two_models "$dir/$part" quantizing "--$part"
done
finding quantizing "$dir" -o studies
finding pages
