#!/usr/bin/env bash
# Runs a study in shards through Snakemake, on this machine or on a cluster, and joins them.
#   scripts/cluster/study.sh "OPTIONS OF kvsim study" DIR SHARDS [KEY=VALUE...] [-- snakemake options]
# KEYs: threads (2 per shard), mem_mb (8000), minutes (240), kvsim (build/kvsim). Without options it
# uses all cores of this machine. Snakemake is installed into a venv of its own when it is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

if [ $# -lt 3 ]; then
  sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
config=("study=$1" "out=$2" "shards=$3")
run_snakemake Study.smk "${@:4}"
