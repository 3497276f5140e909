#!/usr/bin/env bash
# Fuzzes in process: builds kvsim_fuzz (libFuzzer, address and undefined-behaviour sanitizers), starts
# from seeds and the stored corpus, stops at the first find. docs/debugging.md 9 says what is one.
#   scripts/fuzz.sh TARGET [N]     N executions (default: a million) of one target
#   scripts/fuzz.sh --all [N]      of every target
#   scripts/fuzz.sh --pack TARGET  the corpus of earlier runs, made small, into tests/fuzz/corpus
# Finds lie in build/fuzz/TARGET/finds, what was learnt in build/fuzz/TARGET/corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# shellcheck disable=SC2086  # a list of names
ensure_packages $PACKAGES libclang-rt-14-dev
build fuzz kvsim_fuzz
cd "$KVSIM_ROOT"
fuzzer=$KVSIM_ROOT/build/fuzz/kvsim_fuzz
# HDF5 reads beyond its buffers in damaged files, and forgets memory (docs/security.md 3); what it
# corrupts of ours is still found.
printf 'interceptor_via_lib:libhdf5\n' >build/fuzz/suppressions
printf 'leak:libhdf5\n' >build/fuzz/leaks
ASAN_OPTIONS=suppressions=$KVSIM_ROOT/build/fuzz/suppressions:detect_stack_use_after_return=0
ASAN_OPTIONS+=:handle_abort=1:quarantine_size_mb=16:max_allocation_size_mb=256
export ASAN_OPTIONS UBSAN_OPTIONS=print_stacktrace=1
export LSAN_OPTIONS=suppressions=$KVSIM_ROOT/build/fuzz/leaks:print_suppressions=0

targets() { KVSIM_FUZZ='' "$fuzzer" 2>&1 | sed -n 's/^KVSIM_FUZZ names a target: //p'; }

# prepare TARGET: seeds and the stored corpus in its folder.
prepare() {
  local place=build/fuzz/$1
  mkdir -p "$place/corpus" "$place/finds"
  KVSIM_FUZZ=$1 KVSIM_FUZZ_SEEDS=$place/corpus "$fuzzer" >/dev/null 2>&1
  [ ! -f "tests/fuzz/corpus/$1.tar.gz" ] || tar -xzf "tests/fuzz/corpus/$1.tar.gz" -C "$place/corpus"
}

fuzz() {
  local longest=512 signal own=()
  prepare "$1"
  # Files are longer than texts.
  [ "$(head -c 4 "build/fuzz/$1/corpus/seed-0" | tail -c 3)" != HDF ] || longest=131072
  # The reader of files answers signals as the program does (tests/fuzz/reader.hpp).
  for signal in segv abrt bus fpe ill; do own+=("-handle_$signal=0"); done
  say "fuzzing $1: $2 executions"
  KVSIM_FUZZ=$1 "$fuzzer" "build/fuzz/$1/corpus" -runs="$2" -timeout=10 -max_len=$longest \
    "${own[@]}" -rss_limit_mb=1024 -artifact_prefix="build/fuzz/$1/finds/" -close_fd_mask=1 \
    -print_final_stats=1 >"build/fuzz/$1/log" 2>&1 || {
    if [ -z "$(ls "build/fuzz/$1/finds")" ]; then
      say "stopped early: build/fuzz/$1/log; the same command goes on from what was learnt"
    else
      tail -n 40 "build/fuzz/$1/log" >&2
      say "found something: build/fuzz/$1/finds, build/fuzz/$1/log"
    fi
    exit 1
  }
  grep -E 'number_of_executed_units|average_exec|peak_rss' "build/fuzz/$1/log" >&2
}

pack() {
  local place=build/fuzz/$1 small
  small=$(mktemp -d)
  KVSIM_FUZZ=$1 "$fuzzer" -merge=1 "$small" "$place/corpus" >/dev/null 2>&1
  mkdir -p tests/fuzz/corpus
  # The smallest inputs, as many as a test run has time for.
  (cd "$small" && find . -type f -printf '%s %p\n' | sort -n | sed 's/^[0-9]* //' |
    head -n "${KEEP:-300}" | tar -cf - --sort=name --owner=0 --group=0 --mtime=@0 -T -) |
    gzip -9n >"tests/fuzz/corpus/$1.tar.gz"
  rm -rf "$small"
  say "tests/fuzz/corpus/$1.tar.gz: $(stat -c %s "tests/fuzz/corpus/$1.tar.gz") bytes"
}

case ${1:-} in
  --all) for target in $(targets); do fuzz "$target" "${2:-1000000}"; done ;;
  --pack) pack "${2:?which target?}" ;;
  '' | -*) say "scripts/fuzz.sh TARGET [N]; targets: $(targets)"; exit 2 ;;
  *) fuzz "$1" "${2:-1000000}" ;;
esac
