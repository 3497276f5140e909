#!/usr/bin/env bash
# Looks at changed files, or those that are named: clang-format and clang-tidy for C++ (which needs
# build/dev configured), ruff for Python, shellcheck for shell scripts. Changes nothing.
#   scripts/lint.sh            what differs from main, committed or not
#   scripts/lint.sh FILE...    these
#   scripts/lint.sh --all      every file, without clang-tidy, which takes a minute for each
# Exit code 1 when something was found.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# shellcheck disable=SC2086  # a list of names
ensure_packages $LINT_PACKAGES
ensure_venv lint "$KVSIM_ROOT/scripts/lint_requirements.txt"
cd "$KVSIM_ROOT"

tidy=yes
if [ "${1:-}" = --all ]; then
  tidy=no
  mapfile -t files < <(git ls-files)
elif [ $# -gt 0 ]; then
  files=("$@")
else
  base=$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
  mapfile -t files < <({ git diff --name-only --diff-filter=d "$base"
                         git ls-files --others --exclude-standard; } | sort -u)
fi

cpp=() units=() python=() shell=()
for file in "${files[@]}"; do
  case $file in
    *.cpp | *.hpp | *.inc | *.cu | *.cuh) cpp+=("$file") ;;
    *.py) python+=("$file") ;;
    *.sh | .ci/run) shell+=("$file") ;;
  esac
  [[ $file != *.cpp ]] || units+=("$file")
done

found=0
if [ ${#cpp[@]} -gt 0 ]; then
  "$KVSIM_CACHE/lint/bin/clang-format" --dry-run --Werror "${cpp[@]}" || found=1
fi
if [ $tidy = yes ] && [ ${#units[@]} -gt 0 ]; then
  quietly "cmake --preset dev" cmake --preset dev
  clang-tidy --quiet -p build/dev "${units[@]}" 2>/dev/null || found=1
fi
[ ${#python[@]} -eq 0 ] || "$KVSIM_CACHE/lint/bin/ruff" check --quiet "${python[@]}" || found=1
[ ${#shell[@]} -eq 0 ] || shellcheck -x -S error "${shell[@]}" || found=1
[ $found = 0 ] && say "nothing found in ${#files[@]} files"
exit $found
