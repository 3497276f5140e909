#!/usr/bin/env bash
# The same study on two models (studies/two_models.md): documents as people write them, one per source,
# their losses with every policy of findings/two_models.py, and the page's tables and figure.
#   studies/two_models.sh [DIR]   default: build/two_models; what DIR holds is not made again
# PARTS is how many sixths of the documents are taken: every sixth of them, from the first on (2). THREADS is
# the number of threads (1). A document takes one to two minutes of a core.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/two_models}")
ready_for_two_models
documents_where "$dir/documents" "(NR - 1) % 6 < ${PARTS:-2}"
study_two_models "$dir" two_models --options
finding two_models "$dir" -o studies
finding pages
