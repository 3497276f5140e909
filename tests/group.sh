#!/usr/bin/env bash
# Groups of tests that are not in kvsim_tests, one function each. ctest runs them by name and label:
#   tests/group.sh --list        NAME LABEL of every group, and `alone` if none may run beside it
#   tests/group.sh NAME          installs what it needs and runs one: none is left out
# They use build/kvsim (KVSIM_BIN names another) and the Python of the scripts' venvs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh
cache=$KVSIM_CACHE
kvsim=${KVSIM_BIN:-$PWD/build/kvsim}
export KVSIM_BIN=$kvsim
plots_python=$cache/plots/bin/python
system_python=/usr/bin/python3
independent=$PWD/../shared/check/check.py
# Groups run side by side: threads of one that wait for each other take the time of the others.
export OMP_NUM_THREADS=1

# Installed as scripts/test.sh does, for who runs a group alone.
plots() {
  ensure_venv plots plots/requirements.txt
  "$plots_python" "$@"
}
torch() {
  ensure_model tests/python/requirements.txt
  "$KVSIM_TORCH" "$@"
}

# With transformers in its oldest and its newest version that serves; `torch` has the one of kvpress.
oldest() {
  ensure_transformers oldest
  "$cache/oldest/bin/python" "$@"
}
newest() {
  ensure_transformers newest
  "$cache/newest/bin/python" "$@"
}

# together PYTHON TEST...: modules of tests in one process, which imports PyTorch, or what draws, once.
together() {
  PYTHONPATH=tests/capture:tests/python "$1" -m unittest "${@:2}"
}

group_lint() {   # label: lint
  local bin=$cache/lint/bin
  ensure_venv lint scripts/lint_requirements.txt
  "$bin/ruff" check .
  git ls-files '*.cpp' '*.hpp' '*.inc' '*.cu' '*.cuh' | xargs "$bin/clang-format" --dry-run --Werror
  "$system_python" tests/python/test_direction.py
}
group_memory() {   # label: program
  "$system_python" tests/cli/test_memory.py "$kvsim"
}
group_failures() {   # label: program
  plots tests/cli/test_failures.py "$kvsim" --only replay,sweep,merge,capture,results
  plots tests/cli/test_failures.py "$kvsim" --only search,plot --kills 2
}
# File by file, each with the headers that it names: none may need what its neighbours include.
group_plain() {   # label: build
  cmake --preset plain >/dev/null
  "$system_python" tests/compile_alone.py build/plain
}
# The CPU backend for a processor of another kind; its kernels must be real code there.
group_aarch64() {   # label: build
  local compiler="aarch64-linux-gnu-g++ -std=c++20 -fopenmp -Wall -Wextra" file
  compiler+=" -I. -isystem /usr/include/eigen3"
  for file in sim/core/*.cpp sim/backend/*.cpp sim/backend/cpu/*.cpp; do
    $compiler -fsyntax-only "$file"
  done
  $compiler -O3 -ffp-contract=fast -DKVSIM_ISA=portable -DKVSIM_ISA_NAME='"portable"' \
    -DKVSIM_KERNELS=kernels_portable -c -o /dev/null -x c++ sim/backend/cpu/kernels.inc
}
group_figures() {   # label: python
  plots -m unittest discover -s tests/plots
}
group_page_script() {   # label: python
  tsc -p python/kvsim/plots/report/tsconfig.json
}
group_page() {   # label: program
  "$system_python" -m unittest discover -s tests/report
}
group_markup() {   # label: capture
  "$system_python" tests/capture/test_markup.py
}
group_capture() {   # label: capture
  together newest test_unpacked test_gguf test_capture test_between test_probes test_rope test_inputs
}
group_capture_oldest() {   # label: capture
  together oldest test_unpacked test_gguf test_capture test_between test_probes test_inputs
}
group_closed_loop() {   # label: capture
  newest tests/capture/test_closed_loop.py
}
group_closed_loop_oldest() {   # label: capture
  oldest tests/capture/test_closed_loop.py
}
group_live_caches() {   # label: capture
  newest tests/capture/test_live_caches.py
}
group_package() {   # label: python
  together plots test_tool test_package test_functions test_comparison test_tables test_writer_path test_untrusted test_fuzz
}
group_search() {   # label: python
  together plots test_search test_search_ranks
}
group_models() {   # label: capture
  together newest test_model test_models test_latent test_engines test_token_dropping
}
group_models_oldest() {   # label: capture
  together oldest test_model test_latent
}
# Intervals over steps beside those of the package arch, which the requirements for models bring.
group_ranking() {   # label: python
  torch tests/python/test_ranking.py
}
group_presses() {   # label: capture
  together torch test_kvpress test_live_press
  newest tests/python/test_live_press.py   # more than kvpress allows; its masks serve there, too
  oldest tests/python/test_live_press.py \
    Live.test_kvpress_may_be_imported_at_any_time_and_nothing_warns_of_names
}
group_study() {   # label: capture
  together torch test_study test_choice test_tasks test_benchmarks
}
group_notebooks() {   # label: python
  ensure_model tests/python/requirements.txt
  KVSIM_NOTEBOOK_PYTHON=$KVSIM_TORCH scripts/notebooks.sh
}
# The wheel of the release build, in an environment that has nothing else of kvsim.
group_wheel() {   # label: python
  scripts/wheel.sh >/dev/null
  tests/python/test_wheel.sh build/dist
}
group_docs() {   # label: python
  scripts/docs.sh
}
group_cluster() {   # label: program
  ensure_venv cluster scripts/cluster/requirements.txt
  "$system_python" tests/cluster/test_workflow.py
}
# Nothing of it can be reached from outside, and all of it ends with the test.
group_slurm() {   # label: program
  local apart="unshare --net --pid --fork --kill-child --mount-proc"
  ensure_venv cluster scripts/cluster/requirements.txt
  $apart true || { say "slurm: no right to make namespaces; sudo -E tests/group.sh slurm"; exit 1; }
  $apart "$system_python" tests/cluster/test_slurm.py
}
group_sample() {   # label: program
  "$kvsim" verify data/sample.h5
}
group_goldens() {   # label: program
  "$system_python" tests/golden/check_golden.py "$kvsim"
}
# Pages of findings: their tables and figures from the CSV files; their scripts on tiny traces; what needs
# PyTorch and kvpress.
studies_path=python:studies:tests/plots:tests/python:tests/capture:tests/support
group_studies() {   # label: studies
  PYTHONPATH=$studies_path plots -m unittest discover -s studies/tests
}
group_studies_scripts() {   # label: studies
  PYTHONPATH=$studies_path plots -m unittest discover -s studies/tests/scripts
}
group_studies_model() {   # label: studies
  PYTHONPATH=$studies_path torch -m unittest discover -s studies/tests/model
}
group_install() {   # label: program
  "$system_python" tests/cli/test_install.py
}
group_cuda() {   # label: cuda
  ensure_nvcc
  cmake --preset cuda >/dev/null
  cmake --build --preset cuda --target kvsim
  scripts/test_cuda.sh build-cuda/kvsim "$plots_python"
}
group_readme() {   # label: program alone
  "$system_python" tests/cli/test_readme.py
}
group_independent() {   # label: program
  "$system_python" "$independent" "$kvsim"
  "$system_python" "$independent" "$kvsim" --merge
}

name=${1:-}
case $name in
  --list)   # the independent judge lies beside the repository where there is one
    sed -n 's/^group_\([a-z0-9_]*\)() {   # label: \([a-z ]*\)$/\1 \2/p' tests/group.sh |
      { [ -f "$independent" ] && cat || grep -v '^independent '; }
    ;;
  *)
    # shellcheck disable=SC2086  # lists of names
    ensure_packages $PACKAGES $TEST_PACKAGES
    declare -F "group_$name" >/dev/null ||
      { echo "tests/group.sh: no group \"$name\"; --list names them" >&2; exit 2; }
    "group_$name"
    ;;
esac
