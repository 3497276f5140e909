#!/usr/bin/env bash
# Does the wheel work where nothing else of kvsim is? Installs the one in FOLDER into an empty virtual
# environment and uses it with the libraries that it was built with out of reach.
#   tests/python/test_wheel.sh FOLDER [--sdist]   --sdist: also builds and installs from the sdist
# As root in a mount namespace the libraries are hidden; elsewhere only what is loaded is looked at.
set -euo pipefail
unset KVSIM_BIN  # the program of the wheel is the one to be found
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dist=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvsim
plots=$cache/plots/bin/python
if [ "${2:-}" != --sdist ] && [ -f "$cache/plots/plots-requirements.txt.installed" ]; then
  # What the wheel requires, and no more, is linked from there, compiled modules with it.
  /usr/bin/python3 -m venv --without-pip "$work/venv"
  site=$("$work/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
  "$plots" -P "$here/link_required.py" "$dist"/kvsim-*.whl "$site"
  "$plots" -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
    --no-index "$dist"/kvsim-*.whl
else
  /usr/bin/python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check "$dist"/kvsim-*.whl
fi
program=$("$work/venv/bin/python" -c "import kvsim.program as p; print(p.find_program())")
case $program in
  "$work"/*) ;;
  *) echo "not the program of the wheel: $program"; exit 1 ;;
esac

# What is loaded is glibc's, the C++ runtime, as manylinux allows, or lies in the wheel.
foreign=$(LD_TRACE_LOADED_OBJECTS=1 "$program" | sed 's/ (0x.*//' |
  grep -vE "linux-vdso|/ld-linux|lib(c|m|pthread|dl|rt)\.so\.6|libstdc\+\+\.so\.6|libgcc_s\.so\.1|=> $work/" || true)
if [ -n "$foreign" ]; then
  echo "the program needs libraries of this system: $foreign"
  exit 1
fi

# The source distribution has every source that the wheel is made of.
missing=$(cd "$here/../.." && comm -23 \
  <(git ls-files CMakeLists.txt LICENSE README.md pyproject.toml analysis cli cmake io run sim | sort) \
  <(tar -tzf "$dist"/kvsim-*.tar.gz | sed 's,^[^/]*/,,' | sort))
if [ -n "$missing" ]; then
  echo "not in the source distribution: $missing"
  exit 1
fi

use="cd '$work' && env -u KVSIM_BIN -u KVSIM_PYTHON -u PYTHONPATH PATH='$work/venv/bin:/usr/bin:/bin' \
  python '$here/use_wheel.py'"
if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
  # Nothing of the build is left: headers, libraries, the clone's own program and modules.
  hide="mount --bind '$work/empty' /usr/include; for one in \
    /usr/lib/*-linux-gnu/lib{hdf5,fmt,boost_,xxhash,sz,aec,gomp,curl}*.so*; do \
    [ -f \"\$one\" ] && mount --bind /dev/null \"\$one\"; done"
  mkdir "$work/empty"
  unshare -m bash -c "$hide; cp '$here/use_wheel.py' '$work/'; $use"
else
  echo "libraries are not hidden: that takes root"
  bash -c "$use"
fi

# A new user's tour with a model: the environment sees PyTorch, and no other part of a clone.
torch=$cache/torch
if "$torch/bin/python" -c 'import torch, transformers, optuna, xxhash' 2>/dev/null; then
  "$torch/bin/python" -c 'import site; print(site.getsitepackages()[0])' \
    >"$("$work/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/torch.pth"
  mkdir "$work/tour"
  cp "$here/tour.py" "$here/../capture/tiny_models.py" "$work/tour/"
  (cd "$work/tour" && env -u KVSIM_PYTHON -u PYTHONPATH \
    XDG_CACHE_HOME="$work/cache" PATH="$work/venv/bin:/usr/bin:/bin" python tour.py)
else
  echo "tour skipped: no PyTorch with transformers and optuna in $torch"
fi

if [ "${2:-}" = --sdist ]; then
  # As deep as the release build, so that a compiler cache knows the objects.
  "$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check --force-reinstall --no-deps \
    --config-settings build-dir=build "$dist"/kvsim-*.tar.gz
  bash -c "$use"
fi
