#!/usr/bin/env bash
# Runs a module of studies/findings, which makes tables or figures:
#   studies/make.sh MODULE ARGUMENT...     as `studies/make.sh pages`; README.md has the list
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$KVSIM_ROOT"
ensure_venv plots plots/requirements.txt
if [ "${1:-}" = make_traces ]; then   # it runs the model
  ensure_model
  model_finding "$@"
  exit
fi
finding "${1:?which module? see studies/README.md}" "${@:2}"
