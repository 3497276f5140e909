#!/usr/bin/env bash
# A policy chosen by the trace alone, as `kvsim choose` does, and what that loses (studies/choose.md): the policies
# of set_aside.sh on the fifteen documents that no choice had seen, and the page's tables and figure.
#   studies/choose.sh [DIR]   default: build/choose; what DIR holds is not made again
# THREADS is the number of threads (1). A document takes one to two minutes of a core.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/choose}")
ready_for_two_models
documents_where "$dir/documents" 'NR % 6 == 4 || NR % 6 == 0'
study_two_models "$dir" set_aside --judged
finding choose "$dir" -o studies
finding pages
