#!/bin/sh
# Builds the benchmark and runs it against its baselines: bench/run.sh [options of run.py].
# KVSIM_TORCH names a Python interpreter that has torch; without it that of ~/.cache/kvsim/torch.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
torch=${KVSIM_TORCH:-$HOME/.cache/kvsim/torch/bin/python}
if [ -n "${KVSIM_TORCH:-}" ] && { [ -d "$torch" ] || [ ! -x "$torch" ]; }; then
  echo "bench/run.sh: KVSIM_TORCH=$torch is no interpreter; expected the path of a Python that has torch, as ~/venv/bin/python" >&2
  exit 2
fi
case " $* " in
  *" --backend cuda "*) preset=cuda build=$root/build-cuda ;;
  *) preset=release build=$root/build ;;
esac
(cd "$root" && cmake --preset $preset -DKVSIM_BENCH=ON >/dev/null &&
  cmake --build --preset $preset --target kvsim kvsim_bench >/dev/null)
if [ -x "$torch" ]; then
  set -- --torch "$torch" "$@"
else
  echo "no torch at $torch: PyTorch's forms are left out" >&2
fi
exec /usr/bin/python3 "$root/bench/run.py" "$build/kvsim_bench" "$build/kvsim" "$@"
