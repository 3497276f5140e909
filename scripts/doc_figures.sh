#!/usr/bin/env bash
# Remakes figures of the documentation in place: docs/sensitivity_map.png from a sweep of the sample,
# and in docs/reproduction/ what scripts/reproduce.sh has drawn in build/reproduction/ (of the sample
# alone, or of the larger traces, too).
#   scripts/doc_figures.sh
# docs/losses.png and docs/rehearsal.png are drawn from the tables in docs/losses/. scripts/losses.sh
# makes those tables and docs/losses_layers.png, tests/report/picture.py makes docs/report.png.
# KVSIM_BIN names another program than build/kvsim. Look at every figure before you commit it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$KVSIM_ROOT"
kvsim=${KVSIM_BIN:-}
if [ -z "$kvsim" ]; then
  ready_to_run
  kvsim=build/kvsim
fi

out=build/doc_figures
"$kvsim" sweep data/sweeps/restkv_smoothing.toml -o "$out" --overwrite -q
"$kvsim" plot "$out/sample.nc" -o "$out" --only sensitivity_map --formats png --overwrite >/dev/null
cp "$out/sensitivity_map-restkv.png" docs/sensitivity_map.png
say docs/sensitivity_map.png

study() { PYTHONPATH=python "$KVSIM_CACHE/plots/bin/python" -m "kvsim.plots.study.$1" "${@:2}"; }
study losses docs/losses/losses_summary.csv -o "$out" >/dev/null
study rehearsal docs/losses/losses.csv docs/losses/rehearsal.csv -o "$out" >/dev/null
for name in losses rehearsal; do
  cp "$out/$name.png" "docs/$name.png"
  say "docs/$name.png"
done

# FIGURE is the name in docs/reproduction, DRAWN the place in build/reproduction; TABLE: its numbers,
# of which the pages are made, too; or these alone.
while read -r figure drawn table; do
  made=build/reproduction/$drawn.png
  [ "$table" != alone ] || made=${made%.png}.csv
  if [ -f "$made" ]; then
    [ "$table" = alone ] ||
      cp "build/reproduction/$drawn.png" "docs/reproduction/$figure.png"
    [ -z "$table" ] || cp "build/reproduction/$drawn.csv" "docs/reproduction/$figure.csv"
    say "docs/reproduction/$figure"
  else
    say "docs/reproduction/$figure.${made##*.} is left as it is: $made was not made"
  fi
done <<'FIGURES'
theory theory/theory/theory
fragility sample/fragility-1
explain sample/explain
risk_traces traces/risk_traces table
attention_traces traces/attention_traces table
aggregation traces/aggregation-0.5/traces
keep_rate_traces instructions-512/keep_rate_traces
keep_rate_ratios sample/keep_rate_ratios
instructions instructions table
instructions-2300 instructions-2300 alone
instructions-8000 instructions-8000 alone
fair_lengths fair_lengths
whitelist_lengths whitelist_lengths
fairness instructions-512/defense-first/loops/fairness
pareto instructions-512/defense-first/loops/pareto
span_order_traces rules/span_order_traces table
needles1-kept needles-0.5/needles1-kept table
needles1-importance needles-0.5/needles1-importance alone
needles4-kept needles-0.5/needles4-kept alone
needles4-importance needles-0.5/needles4-importance table
FIGURES
PYTHONPATH=python "$KVSIM_CACHE/plots/bin/python" -m kvsim.plots.study.pages
