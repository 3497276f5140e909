# Shared by the scripts of the studies. Sourced, not run.
# shellcheck shell=bash
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

# finding MODULE ARGUMENT...: a module of studies/findings.
finding() {
  PYTHONPATH=$KVSIM_ROOT/python:$KVSIM_ROOT/studies "$KVSIM_CACHE/plots/bin/python" -m "findings.$1" "${@:2}"
}
