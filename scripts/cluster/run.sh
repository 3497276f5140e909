#!/usr/bin/env bash
# Runs a sweep, a search or a study in shards through Snakemake, on this machine or on a cluster.
#   scripts/cluster/run.sh sweep|search FILE.toml DIR SHARDS [KEY=VALUE...] [-- snakemake options]
#   scripts/cluster/run.sh study "OPTIONS OF kvsim study" DIR SHARDS [KEY=VALUE...] [-- snakemake options]
# KEYs: threads (2 per shard), mem_mb (4000), minutes (240), kvsim (build/kvsim), figures of a sweep
# (all). Without options it uses all cores of this machine. Snakemake is installed into a venv of its
# own when it is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

case ${1:-} in
  sweep | search | study) ;;
  *) set -- ;;
esac
if [ $# -lt 4 ]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
config=("command=$1" "what=$2" "out=$3" "shards=$4")
run_snakemake Snakefile "${@:5}"
