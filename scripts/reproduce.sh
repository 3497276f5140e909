#!/usr/bin/env bash
# Remakes every figure and number of docs/reproduction.md.
#   scripts/reproduce.sh [TRACE...]     default: data/sample.h5; results and figures in
#                                       build/reproduction/
# What a trace is good for is taken from its spans: any for fragility, `defense` and `directive` for
# eviction bias, a name with _wish_ beside one with _leak_ for both requests of one cache, `needle*`
# for needles, `secrecy` for the order of rules.
# KVSIM_BIN names the program (default: build/kvsim, as scripts/quickstart.sh makes it);
# KVSIM_LAYERS=0,5,10 restricts what is replayed of eviction bias to some layers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kvsim=${KVSIM_BIN:-build/kvsim}
out=build/reproduction
traces=("$@")
[ ${#traces[@]} -gt 0 ] || traces=(data/sample.h5)

name() { basename "$1" .h5; }
draw() { "$kvsim" plot "$@" --overwrite; }
says() { local text; text=$("$kvsim" inspect "$1"); grep -q "$2" <<<"$text"; }
has_span() { says "$1" "^span  *$2"; }

# replay TRACE GROUP BUDGETS RECORD...: results in $out/NAME.GROUP.nc.
replay() {
  local trace=$1 group=$2 budgets=$3 one policies=()
  shift 3
  for one in "$@"; do policies+=(--policy "$one"); done
  if [[ -n ${KVSIM_LAYERS:-} && $group =~ bias|whitelist|rules ]]; then
    policies+=(--layers "$KVSIM_LAYERS")
  fi
  "$kvsim" replay "$trace" "${policies[@]}" --budget "$budgets" --wo-steps 16 -q \
    -o "$out/$(name "$trace").$group.nc" --overwrite
}

theory() {
  "$kvsim" theory | tee "$out/theory.txt"
  "$kvsim" theory --json >"$out/theory.json"
  "$kvsim" theory --dwell 8 --json >"$out/theory_dwell.json"
  draw "$out/theory.json" "$out/theory_dwell.json" -o "$out/theory"
}

# Every query of the window alone, their mean, the defensive step, hindsight.
fragility() {
  local file
  file=$out/$(name "$1").fragility
  "$kvsim" replay "$1" --fragility --wo-steps 16 -o "$file.nc" --overwrite | tee "$file.txt"
  draw "$file.nc" -o "$out/$(name "$1")" --only fragility
}

# What was lost at the worst step of SnapKV.
lost() {
  local file
  file=$out/$(name "$1")
  "$kvsim" replay "$1" --policy snapkv --budget 0.5 --wo-steps 16 --save-keep -q \
    -o "$file.kept.nc" --overwrite
  "$kvsim" explain "$file.kept.nc" --trace "$1" | tee "$file.explain.txt"
  "$kvsim" explain "$file.kept.nc" --trace "$1" --json >"$file.explain.json"
  draw "$file.explain.json" -o "$file"
}

# Estimates of risk, dynamics of the full cache's attention, key norms.
attention() {
  local file
  file=$out/$(name "$1").attention
  "$kvsim" replay "$1" --policy snapkv --policy h2o --policy streaming --policy defensivekv \
    --policy knorm --policy random --budget 0.2,0.5 --wo-steps 16 -q -o "$file.nc" --overwrite \
    --metric risk,attention_cdf,late_importance,locality,drift,key_norm
  draw "$file.nc" -o "$out/$(name "$1")" \
    --only risk,attention_cdf,late_importance,locality,drift,key_norm
}

# DefensiveKV's aggregation, priors and ties; windows; whole methods.
ablation() {
  local max=aggregate=max,group=max m windows=()
  local after=importance,indicator=attention,weight=projected-l1   # the norm after the prior
  replay "$1" aggregation 0.5,0.2 importance importance,aggregate=single "importance,$max" \
    "importance,$max,prior=head-mean" "importance,$max,prior=head-mean,tie=recent" \
    "$after" "$after,$max" "$after,$max,prior=constant,prior_value=0.001" \
    "$after,$max,prior=constant,prior_value=0.0001" \
    "$after,$max,prior=constant,prior_value=0.00001" "$after,$max,prior=head-mean" \
    "$after,$max,prior=head-mean,tie=recent" oracle-mean
  for m in 8 16 32 64 128; do
    windows+=("importance,window=$m" "importance,window=$m,$max,prior=head-mean")
  done
  replay "$1" windows 0.5,0.2 "${windows[@]}"
  replay "$1" methods 0.5,0.2 importance snapkv adakv criticalkv restkv defensivekv \
    defensivekv:code layer-defensivekv layer-defensivekv:code oracle-mean
}

draw_ablations() {
  local group budget
  for group in aggregation windows methods; do
    for budget in 0.5 0.2; do
      draw "$out"/*."$group.nc" -o "$out/traces/$group-$budget" --only traces \
        --budget "$budget" --formats pdf,png,csv
    done
  done
}

# Eviction bias in kvpress's forms: as they are, fair, the defense whitelisted; then debiased.
bias() {
  local one lambda forms=(snapkv:kvpress tova:kvpress knorm:kvpress streaming:kvpress)
  if says "$1" 'stored: 0-'; then forms+=(h2o:kvpress); fi
  local records=() grid=()
  for one in snapkv:kvpress tova:kvpress streaming:kvpress; do
    grid+=("$one")
    for lambda in 0 0.2 0.4 0.6 0.8 1; do
      grid+=("$one,constrain=debias,debias_lambda=$lambda")
    done
  done
  for one in "" ,constrain=fair; do records+=("${forms[@]/%/$one}"); done
  replay "$1" bias 0.1:1.0:0.1 "${records[@]}"
  # A whitelist must fit into the budget.
  replay "$1" whitelist 0.3:1.0:0.1 "${records[@]}" "${forms[@]/%/,whitelist=defense}"
  replay "$1" debias 0.1:1.0:0.1 "${grid[@]}"
  draw "$out/$(name "$1").bias.nc" -o "$out/$(name "$1")" \
    --only bias_index,keep_rate,keep_rate_layers,span_scores
}

# The request that needs the directive and the one to leak it, on one cache; $1 is the former.
requests() {
  local wish leak
  wish=$(name "$1")
  leak=${wish/_wish_/_leak_}
  draw "$out/$wish.whitelist.nc" "$out/$leak.whitelist.nc" -o "$out/$wish" --only fairness \
    --formats pdf,png,csv
  draw "$out/$wish.debias.nc" "$out/$leak.debias.nc" -o "$out/$wish" --only pareto \
    --formats pdf,png,csv
}

# Both orders of the instructions below each other; $1 is the defense first.
orders() {
  local first second
  first=$(name "$1")
  second=${first/_defense_/_directive_}
  draw "$out/$first.whitelist.nc" "$out/$second.whitelist.nc" -o "$out/$first" \
    --only keep_rate_traces
}

rules() {
  replay "$1" rules 0.1:0.9:0.1 snapkv:kvpress tova:kvpress knorm:kvpress streaming:kvpress \
    snapkv:kvpress,constrain=fair importance defensivekv
  draw "$out/$(name "$1").rules.nc" -o "$out/$(name "$1")" \
    --only keep_rate,bias_index,span_scores
}

needle() {
  replay "$1" needle 0.5,0.2 snapkv adakv criticalkv defensivekv layer-defensivekv restkv tova \
    knorm keydiff streaming importance oracle-mean
}

draw_needles() {
  local budget
  for budget in 0.5 0.2; do
    draw "$out"/*.needle.nc -o "$out/needles-$budget" --only needles --budget "$budget" \
      --formats pdf,png,csv
  done
}

mkdir -p "$out"
rm -f "$out"/*.nc   # figures over traces take all that are there
theory
for trace in "${traces[@]}"; do
  if has_span "$trace" needle; then needle "$trace"; continue; fi
  fragility "$trace"
  lost "$trace"
  if says "$trace" 'stored: 0-'; then attention "$trace"; fi   # H2O reads every prompt query
  ablation "$trace"
  if has_span "$trace" defense; then bias "$trace"; fi
  if has_span "$trace" secrecy; then rules "$trace"; fi
done
for trace in "${traces[@]}"; do
  wish=$(name "$trace")
  [[ $wish == *_wish_* && -f $out/$wish.bias.nc ]] || continue
  if [ -f "$out/${wish/_wish_/_leak_}.bias.nc" ]; then requests "$trace"; fi
  if [[ $wish == *_defense_* && -f $out/${wish/_defense_/_directive_}.bias.nc ]]; then
    orders "$trace"
  fi
done
if ls "$out"/*.aggregation.nc >/dev/null 2>&1; then draw_ablations; fi
if ls "$out"/*.needle.nc >/dev/null 2>&1; then draw_needles; fi

# Merging, schedules, quantisation.
scripts/reproduce_merging.sh "${traces[@]}"
