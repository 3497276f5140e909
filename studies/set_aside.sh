#!/usr/bin/env bash
# A policy chosen on both models and judged on documents set aside (studies/set_aside.md): candidates on six
# documents, the chosen one and its rivals on fifteen others, and the page's tables and figure.
#   studies/set_aside.sh [DIR]   default: build/set_aside; what DIR holds is not made again
# THREADS is the number of threads (1). A document takes one to two minutes of a core.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/set_aside}")
ready_for_two_models
documents_where "$dir/documents" 'NR % 6 == 1 && NR <= 31'
study_two_models "$dir/choice" set_aside --choice
documents_where "$dir/documents" 'NR % 6 == 3 || NR % 6 == 5'
study_two_models "$dir/judged" set_aside --judged
finding set_aside "$dir" -o studies
finding pages
