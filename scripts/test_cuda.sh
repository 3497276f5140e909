#!/usr/bin/env bash
# The `cuda` build's kvsim: on a machine without a device it says so in one line and `auto` takes the
# CPU; with one it must give what the CPU gives, and the tests of all backends run on it, once more
# under compute-sanitizer. Arguments: the cuda build's kvsim, a Python with
# xarray.
set -euo pipefail
kvsim=$1 python=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
run() { "$kvsim" replay data/sample.h5 --layers 0 --budget 0.3 -o "$folder/$1.nc" --backend "$1" --quiet; }

run auto 2>"$folder/auto.txt"
if run cuda 2>"$folder/cuda.txt"; then
  run cpu
  "$python" - "$folder" <<'PYTHON'
import sys
import numpy, xarray
cpu, cuda = (xarray.open_dataset(f"{sys.argv[1]}/{name}.nc", engine="h5netcdf")
             for name in ("cpu", "cuda"))
worst = 0.0
for name, ours in cuda.data_vars.items():
    if not numpy.issubdtype(ours.dtype, numpy.floating):
        continue
    a, b = ours.values.astype(float), cpu[name].values.astype(float)
    both = numpy.isfinite(a) & numpy.isfinite(b)
    assert (numpy.isfinite(a) == numpy.isfinite(b)).all(), name
    scale = numpy.maximum(numpy.abs(b[both]), 1e-3)
    if both.any():
        worst = max(worst, float(numpy.max(numpy.abs(a[both] - b[both]) / scale)))
print(f"largest difference between CUDA and CPU: {worst:.1e}")
sys.exit(worst > 1e-5)
PYTHON
  cmake --build --preset cuda --target kvsim_tests >/dev/null
  tests=$(dirname "$kvsim")/kvsim_tests
  "$tests" "[backend]"
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  if [ -x "$sanitizer" ]; then
    # The host runtime of the tests and the CPU need no second look.
    for tool in memcheck racecheck; do
      KVSIM_TEST_BACKEND=cuda "$sanitizer" --tool $tool --error-exitcode 1 "$tests" "[backend]"
    done
  else
    echo "no compute-sanitizer here"
  fi
else
  rc=$?
  [ "$rc" = 1 ] || { echo "exit code $rc instead of 1"; exit 1; }
  [ "$(wc -l <"$folder/cuda.txt")" = 1 ] && grep -q CUDA "$folder/cuda.txt" ||
    { echo "not one line:"; cat "$folder/cuda.txt"; exit 1; }
  echo "no device to test on: $(cat "$folder/cuda.txt")"
fi
