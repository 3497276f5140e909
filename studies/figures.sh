#!/usr/bin/env bash
# Remakes figures of the pages here in place: those of the tables in losses/ and of the instructions, and in
# reproduction/ what reproduce.sh has drawn in build/reproduction/ (of the sample alone, or of the larger
# traces, too). Then the tables of all pages are filled, and
# the maps of the claims and of the long tables drawn.
#   studies/figures.sh
# losses.sh makes the tables and losses_layers.png. Look at every figure before you commit it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$KVSIM_ROOT"
ensure_venv plots plots/requirements.txt

out=build/figures
finding losses studies/losses/losses_summary.csv -o "$out" >/dev/null
finding rehearsal studies/losses/losses.csv studies/losses/rehearsal.csv -o "$out" >/dev/null
finding reread studies/losses/fresh.csv -o "$out" >/dev/null
finding prediction -o "$out" >/dev/null
for name in losses rehearsal reread prediction_scatter; do
  cp "$out/$name.png" "studies/$name.png"
  say "studies/$name.png"
done
for name in shapes second_question decoding tasks; do
  finding "$name" -o studies
done
finding instructions studies/reproduction/instructions.csv -o studies/reproduction

# FIGURE is the name in studies/reproduction, DRAWN the place in build/reproduction; TABLE: its numbers,
# of which the pages are made, too; or these alone.
while read -r figure drawn table; do
  made=build/reproduction/$drawn.png
  [ "$table" != alone ] || made=${made%.png}.csv
  if [ -f "$made" ]; then
    [ "$table" = alone ] ||
      cp "build/reproduction/$drawn.png" "studies/reproduction/$figure.png"
    [ -z "$table" ] || cp "build/reproduction/$drawn.csv" "studies/reproduction/$figure.csv"
    say "studies/reproduction/$figure"
  else
    say "studies/reproduction/$figure.${made##*.} is left as it is: $made was not made"
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
finding pages
finding claims_drawn
finding long_tables
