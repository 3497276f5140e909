#!/usr/bin/env bash
# Builds the source distribution and the wheel of the Python package into build/dist/.
# The wheel's tag names the oldest glibc that its program runs on; libraries that are not linked in
# are bundled. It is built as the preset `release`, in a folder as deep as that one's, so that the
# compiler cache serves its objects.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck disable=SC2086  # a list of names
ensure_packages $PACKAGES
ensure_venv wheel "$KVSIM_ROOT/scripts/wheel_requirements.txt"
cd "$KVSIM_ROOT"
out=build/dist python=$KVSIM_CACHE/wheel/bin/python
mkdir -p "$out/linux"
rm -f "$out"/*.whl "$out"/*.tar.gz "$out"/linux/*.whl
quietly "building the source distribution" "$python" -m build --sdist --no-isolation -o "$out" .
build release kvsim
say "building the wheel"
quietly "building the wheel" env CC=cc CXX=c++ "$python" -m build --wheel --no-isolation -o "$out/linux" \
  -C build-dir=build-wheel -C cmake.define.KVSIM_WERROR=ON -C cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O2 .
quietly "auditwheel repair" env PATH="$KVSIM_CACHE/wheel/bin:$PATH" "$python" -m auditwheel repair \
  --plat auto -w "$out" "$out"/linux/*.whl
ls "$out"/*.tar.gz "$out"/*.whl
