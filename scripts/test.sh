#!/usr/bin/env bash
# Installs what is missing, builds and runs every test.
#   --sanitizers  also with the address, undefined-behaviour and thread sanitizers
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# shellcheck disable=SC2086  # lists of names
ensure_packages $PACKAGES $TEST_PACKAGES
ensure_venv plots "$KVSIM_ROOT/plots/requirements.txt"
build release kvsim
build dev all

cd "$KVSIM_ROOT"
export KVSIM_BIN=$KVSIM_ROOT/build/kvsim
plots_python=$KVSIM_CACHE/plots/bin/python
torch_python=$KVSIM_CACHE/torch/bin/python
failed=()

# check NAME COMMAND...: runs one group of tests and remembers whether it failed.
check() {
  local name=$1
  shift
  say "== $name"
  "$@" </dev/null || failed+=("$name")
}

# The CPU backend for a processor of another kind; its kernels must be real code there.
compile_for_aarch64() {
  local compiler="aarch64-linux-gnu-g++ -std=c++20 -fopenmp -Wall -Wextra" file
  compiler+=" -I. -isystem /usr/include/eigen3"
  for file in sim/core/*.cpp sim/backend/*.cpp sim/backend/cpu/*.cpp; do
    $compiler -fsyntax-only "$file" || return 1
  done
  $compiler -O3 -ffp-contract=fast -c -o /dev/null sim/backend/cpu/kernels_portable.cpp
}

check "unit tests" build/dev/kvsim_tests --order rand --rng-seed time
check "peak memory" /usr/bin/python3 tests/cli/test_memory.py "$KVSIM_BIN"
if command -v aarch64-linux-gnu-g++ >/dev/null; then
  check "CPU backend for aarch64" compile_for_aarch64
else
  say "== CPU backend for aarch64: no aarch64-linux-gnu-g++, not compiled"
fi
check "figures" "$plots_python" -m unittest discover -s tests/plots
check "prompts with markers" /usr/bin/python3 tests/capture/test_markup.py
check "texts of the larger traces" /usr/bin/python3 tests/capture/test_texts.py
if [ -x "$torch_python" ] && "$torch_python" -c 'import torch, transformers' 2>/dev/null; then
  model_python=$torch_python
else
  model_python=/usr/bin/python3   # the tests say why they are skipped
fi
check "capture" "$model_python" tests/capture/test_capture.py
check "closed loop" "$model_python" tests/capture/test_closed_loop.py
check "closed loop of changed caches" "$model_python" tests/capture/test_live_caches.py
check "sweeps on a cluster" /usr/bin/python3 tests/cluster/test_workflow.py
check "kept sets in kvpress" "$model_python" tests/capture/test_press.py
check "sample trace" "$KVSIM_BIN" verify data/sample.h5
check "goldens of published code" /usr/bin/python3 tests/golden/check_golden.py "$KVSIM_BIN"
if [ -x /usr/local/cuda/bin/nvcc ] || command -v nvcc >/dev/null; then
  build cuda kvsim
  check "CUDA" scripts/test_cuda.sh build/cuda/kvsim "$plots_python"
else
  say "== CUDA: no nvcc, not built"
fi
check "commands of the README" /usr/bin/python3 tests/cli/test_readme.py

independent=$KVSIM_ROOT/../shared/check/check.py
if [ -f "$independent" ]; then
  check "independent numbers" /usr/bin/python3 "$independent" "$KVSIM_BIN"
  check "independent numbers of merging and decoding" /usr/bin/python3 "$independent" \
    "$KVSIM_BIN" --merge
fi

if [ "${1:-}" = --sanitizers ]; then
  for sanitizer in asan tsan; do
    build $sanitizer kvsim_tests
    # Fibres stand for the threads of a device: the thread sanitizer cannot follow them.
    filter=$([ $sanitizer = tsan ] && echo "~[cuda-on-host]" || true)
    check "$sanitizer" "build/$sanitizer/kvsim_tests" --order rand --rng-seed time $filter
  done
fi

if [ ${#failed[@]} -gt 0 ]; then
  say "failed: $(IFS=,; echo "${failed[*]}" | sed 's/,/, /g')"
  exit 1
fi
say "all tests passed"
