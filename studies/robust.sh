#!/usr/bin/env bash
# A policy found by a search on both models (studies/robust.md): eight documents captured on both, the search by what the models
# lose, its best on eight other documents, the chosen one and its rivals on twenty that nobody had run, four of them longer; the
# page's tables and figure.
#   studies/robust.sh [DIR]   default: build/robust; what DIR holds is not made again
# THREADS is the number of threads (1). The search takes an hour and a half of a core, a document half a minute to two.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/robust}")
ready_for_two_models
documents_where "$dir/documents" 'NR % 6 == 1'
study_two_models "$dir/captured" robust --captured
cp studies/searches/robust.toml "$dir/captured"
"$KVSIM_BIN" search "$dir/captured/robust.toml" -o "$dir/captured/study" --threads "${THREADS:-1}"
documents_where "$dir/documents" 'NR % 6 == 2'
study_two_models "$dir/finalists" robust --finalists "$dir"
finding documents "$dir/unseen" --table studies/documents_unseen.csv
texts=(--texts "$dir/unseen")
study_two_models "$dir/judged" robust --judged
texts_where "$dir/unseen" 'NR % 5 == 1'
study_two_models "$dir/long" robust --long
finding robust "$dir" -o studies
finding pages
