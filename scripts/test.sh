#!/usr/bin/env bash
# Installs what is missing, builds and runs every test, of the program that users run: a group that
# cannot run has failed. Groups, their labels and times are ctest's: `ctest --preset release -L capture`
# runs those of a label, `ctest --preset unit` kvsim_tests alone. Groups run side by side, one for each
# core and one more, since some wait for clocks and jobs, but for those that change what others use.
#   --sanitizers  kvsim_tests alone, with the address, undefined-behaviour and thread sanitizers
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# shellcheck disable=SC2086  # lists of names
ensure_packages $PACKAGES $TEST_PACKAGES
ensure_venv plots "$KVSIM_ROOT/plots/requirements.txt"

# What groups need besides, with a log of its own: it comes over the network while the compiler works.
install_for_groups() {
  LOG=$(mktemp "${TMPDIR:-/tmp}/kvsim-script.XXXXXX")
  trap 'rm -f "$LOG"' EXIT
  ensure_transformers oldest
  ensure_transformers newest
  ensure_venv lint "$KVSIM_ROOT/scripts/lint_requirements.txt"
  ensure_venv cluster "$KVSIM_ROOT/scripts/cluster/requirements.txt"
  ensure_venv docs "$KVSIM_ROOT/docs/requirements.txt"
  ensure_venv wheel "$KVSIM_ROOT/scripts/wheel_requirements.txt"
  ensure_nvcc
}
presets=(release)
installing=
if [ "${1:-}" = --sanitizers ]; then
  presets=(asan tsan)
else
  (install_for_groups) &
  installing=$!
fi

cd "$KVSIM_ROOT"
failed=()

# run_groups PRESET: one line with its time for each group, and what a failing one printed; then the
# slowest cases of kvsim_tests.
run_groups() {
  local folder=build/$1
  [ "$1" != release ] || folder=build
  ctest --preset "$1" --parallel "$(($(nproc) + 1))" </dev/null || failed+=("$1")
  say "slowest cases of kvsim_tests (preset $1):"
  grep -E '^[0-9]+\.[0-9]+ s: ' "$folder/Testing/Temporary/LastTest.log" | sort -rn |
    head -n 10 >&2 || true
}

for preset in "${presets[@]}"; do
  build "$preset" kvsim_tests   # and kvsim, which it starts
  [ -z "$installing" ] || wait "$installing"   # it has said what failed
  run_groups "$preset"
done

if [ ${#failed[@]} -gt 0 ]; then
  say "failed: ${failed[*]}; the groups are named above"
  exit 1
fi
say "all tests passed"
