#!/usr/bin/env bash
# From a fresh clone to the first figures: installs what is missing, builds, replays the sample
# trace and draws. Takes seconds when there is nothing to do.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ready_to_run

cd "$KVSIM_ROOT"
build/kvsim replay data/sample.h5 -o build/sample.nc --overwrite
build/kvsim plot build/sample.nc -o figs --overwrite >/dev/null
build/kvsim report build/sample.nc -o figs/sample.html --overwrite >/dev/null
say "results in build/sample.nc; figures, and a page to explore them on, in figs/:"
ls figs/*.png figs/sample.html
