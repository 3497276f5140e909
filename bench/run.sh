#!/bin/sh
# Builds the benchmark and runs it against its baselines: bench/run.sh [options of run.py].
# A Python with torch is looked for in $KVSIM_TORCH, then in ~/.cache/kvsim/torch.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
case " $* " in
  *" --backend cuda "*) preset=cuda build=$root/build-cuda ;;
  *) preset=release build=$root/build ;;
esac
(cd "$root" && cmake --preset $preset -DKVSIM_BENCH=ON >/dev/null &&
  cmake --build --preset $preset --target kvsim kvsim_bench >/dev/null)
torch=${KVSIM_TORCH:-$HOME/.cache/kvsim/torch/bin/python}
if [ -x "$torch" ]; then
  set -- --torch "$torch" "$@"
else
  echo "no torch at $torch: PyTorch's forms are left out" >&2
fi
exec /usr/bin/python3 "$root/bench/run.py" "$build/kvsim_bench" "$build/kvsim" "$@"
