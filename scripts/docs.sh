#!/usr/bin/env bash
# Builds the site of the documentation: build/site/index.html. Every warning is an error.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
ensure_venv docs "$KVSIM_ROOT/docs/requirements.txt"
cd "$KVSIM_ROOT"
if ! "$KVSIM_CACHE/docs/bin/python" -m sphinx -W --keep-going -q -E -b html \
  -d build/site-cache docs build/site >"$LOG" 2>&1; then
  cat "$LOG" >&2
  say "failed: the documentation has errors or warnings"
  exit 1
fi
say "build/site/index.html"
