#!/usr/bin/env bash
# Remakes every figure and number of the pages in studies/reproduction/, from a fresh clone as well.
#   studies/reproduce.sh [TRACE...]    of these traces; without any, of data/sample.h5
#   studies/reproduce.sh --all [DIR]   makes the larger traces in DIR (build/traces) and takes them all
# Results and figures go to build/reproduction/ (KVSIM_OUT names another folder). What is there and newer
# than its trace, the program and this script is not computed again, so an interrupted run is simply
# started again.
#
# What a trace is good for is taken from its spans: `needle*` for needles, `secrecy` for the order of
# rules, `defense` and `directive` for eviction bias; of names that differ in _wish_ and _leak_ only,
# both requests of one cache are compared. Every other trace, and the sample, is for fragility,
# ablations, dynamics and merging. KVSIM_BIN names another program than build/kvsim, KVSIM_TORCH an
# interpreter with data/requirements.txt for closed loops (default: the one that --all installs).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
arguments=()
for one in "$@"; do
  [ "$one" = --all ] || one=$(realpath -m "$one")
  arguments+=("$one")
done
set -- "${arguments[@]}"
export KVSIM_OUT=${KVSIM_OUT:+$(realpath -m "$KVSIM_OUT")}
cd "$KVSIM_ROOT"
out=${KVSIM_OUT:-build/reproduction}
stage=start
left=
started=$SECONDS
trap 'say "failed at: $stage; start the same command again to go on from there"' ERR
set -E

step() { stage=$*; say "[$(printf '%3d' $(((SECONDS - started) / 60))) min] $stage$left"; }
name() { basename "$1" .h5; }
says() { local text; text=$("$kvsim" inspect "$1"); grep -q "$2" <<<"$text"; }
has_span() { says "$1" "^span  *$2"; }
# Paths of figures are noise here; they stand in a list.
draw() { finding plot "$@" --overwrite >>"$out/figures.txt"; }
fresh() { [[ $1 -nt $2 && $1 -nt $kvsim && $1 -nt studies/reproduce.sh ]]; }

# replay TRACE GROUP OPTION...: results in $out/NAME.GROUP.nc; true when there are new ones.
replay() {
  local trace=$1 file
  file=$out/$(name "$1").$2.nc
  shift 2
  fresh "$file" "$trace" || "$kvsim" replay "$trace" "$@" -q -o "$file" --overwrite
}

# records RECORD...: the same as options.
records() { printf -- '--policy\n%s\n' "$@"; }

# compare TRACE GROUP BUDGETS RECORD...: replays records, of the layers in $layers.
layers=()
compare() {
  local trace=$1 group=$2 budgets=$3 policies
  shift 3
  mapfile -t policies < <(records "$@")
  replay "$trace" "$group" "${policies[@]}" "${layers[@]}" --budget "$budgets" --wo-steps 0
}

theory() {
  "$kvsim" theory >"$out/theory.txt"
  "$kvsim" theory --json >"$out/theory.json"
  "$kvsim" theory --dwell 8 --json >"$out/theory_dwell.json"
  draw "$out/theory.json" "$out/theory_dwell.json" -o "$out/theory"
}

# Heads of a layer compete, as in Algorithm 2 of DefensiveKV; and pooling, which it takes over.
competing=allocate=ada,ada_floor=0
pooled=smooth=avg
max=aggregate=max,group=max
after=importance,indicator=attention,weight=projected-l1   # the norm after the prior

# Every query of the window alone, their mean, the defensive step, hindsight: with heads competing and
# without, pooled and not.
fragility() {
  local file
  file=$out/$(name "$1").fragility
  if ! fresh "$file.txt" "$1"; then
    "$kvsim" replay "$1" --fragility --policy "importance,$competing" --policy importance \
      --policy "importance,$competing,$pooled" --policy "importance,$pooled" \
      --policy oracle-mean --budget 0.5,0.35,0.2,0.1 --wo-steps 0 -o "$file.nc" --overwrite >"$file.tmp"
    mv "$file.tmp" "$file.txt"
  fi
  draw "$file.nc" -o "$out/$(name "$1")" --only fragility,risk
}

# What was lost at the worst step of SnapKV.
lost() {
  local file
  file=$out/$(name "$1")
  replay "$1" kept --policy snapkv --budget 0.5 --wo-steps 0 --save-keep
  "$kvsim" explain "$file.kept.nc" --trace "$1" >"$file.explain.txt"
  "$kvsim" explain "$file.kept.nc" --trace "$1" --json >"$file.explain.json"
  draw "$file.explain.json" -o "$file"
}

# Dynamics of the full cache's attention, key norms; H2O reads every prompt query.
attention() {
  local policies=(snapkv streaming defensivekv knorm random)
  if says "$1" 'stored: 0-'; then policies+=(h2o); fi
  mapfile -t policies < <(records "${policies[@]}")
  replay "$1" attention "${policies[@]}" --budget 0.2,0.5 --wo-steps 0 \
    --metric attention_cdf,late_importance,locality,drift,key_norm,importance_pearson \
    --metric importance_cosine
  draw "$out/$(name "$1").attention.nc" -o "$out/$(name "$1")" \
    --only attention_cdf,late_importance,locality,drift,key_norm,importance_correlation
}

# DefensiveKV's aggregation, priors and ties, each with heads competing and with uniform budgets, the
# main ones pooled, too; windows; whole methods; ReST-KV's smoothing.
ablation() {
  local m one changed=() windows=() rows=()
  for one in importance importance,aggregate=single "importance,$max" \
    "importance,$max,prior=head-mean" "importance,$max,prior=head-mean,tie=recent" \
    "$after" "$after,$max" "$after,$max,prior=constant,prior_value=0.001" \
    "$after,$max,prior=constant,prior_value=0.0001" \
    "$after,$max,prior=constant,prior_value=0.00001" "$after,$max,prior=head-mean" \
    "$after,$max,prior=head-mean,tie=recent"; do
    rows+=("$one,$competing" "$one")
  done
  for one in importance "importance,$max" "$after,$max" "$after,$max,prior=head-mean"; do
    rows+=("$one,$competing,$pooled" "$one,$pooled")
  done
  compare "$1" aggregation 0.5,0.35,0.2,0.1 "${rows[@]}" oracle-mean
  for m in 8 16 32 64 128; do
    windows+=("importance,window=$m" "importance,window=$m,$max,prior=head-mean"
      "importance,window=$m,$competing" "$after,window=$m,$max,prior=head-mean,$competing")
  done
  compare "$1" windows 0.5,0.2 "${windows[@]}"
  compare "$1" methods 0.5,0.2 importance snapkv adakv criticalkv restkv defensivekv \
    defensivekv:code layer-defensivekv layer-defensivekv:code oracle-mean
  changed=()
  for one in aggregate={mean,ema-inverse,last},smooth=none smooth={none,avg,max} \
    aggregate={mean,ema-inverse,last} ema_alpha={0.1,0.2,0.5,0.7,0.9} aws_beta={5,20,100,500} \
    indicator=attention indicator=attention-value; do
    changed+=("restkv,$one")
  done
  compare "$1" smoothing 0.5,0.35,0.2,0.1 restkv "${changed[@]}" snapkv
}

# What needs one cache for two requests, or both orders: of the long traces one stands for all.
general() {
  case $(name "$1") in
    *_leak_* | order_directive_* | order_*_512_* | order_*_[1-9] | order_*_8064_* | rules_* | needle*)
      return 1 ;;
  esac
}

# Every third of the layers where there are many: eviction bias is a mean over layers.
some_layers() {
  "$kvsim" inspect "$1" | awk '/^layer /{on = 1; next} !NF {on = 0} on {layer[n++] = $1}
    END {for (i = 0; i < n; i += n > 15 ? 3 : 1) printf "%s%s", i ? "," : "", layer[i]}'
}

# Eviction bias in kvpress's forms: as they are, fair, the defense whitelisted, the same with what
# protects the first tokens; then debiased.
bias() {
  local one lambda forms=(snapkv,rounding=kvpress,window=64 tova,rounding=kvpress knorm,rounding=kvpress streaming,rounding=kvpress)
  if says "$1" 'stored: 0-'; then forms+=(h2o,rounding=kvpress); fi
  local both=("${forms[@]}" "${forms[@]/%/,constrain=fair}") grid=(random) plain
  local guarded=("snapkv,rounding=kvpress,window=64,constrain=fair,sinks=4" "snapkv,rounding=kvpress,window=64,whitelist=defense,sinks=4"
    "snapkv,rounding=kvpress,window=64,constrain=fair,fair_scores=default")
  for one in "${debiased[@]}"; do
    grid+=("$one")
    for lambda in 0 0.2 0.4 0.6 0.8 1; do
      grid+=("$one,constrain=debias,debias_lambda=$lambda")
    done
  done
  local layers=()
  case $(name "$1") in
    *_2304_* | *_8064_*)
      loops "$1"
      # Of the longer texts the first alone has figures of its own.
      case $(name "$1") in *_2304_0) ;; *) return ;; esac
      layers=(--layers "$(some_layers "$1")")
      ;;
  esac
  # A whitelist must fit into the budget.
  compare "$1" whitelist 0.3:1.0:0.1 random "${both[@]}" "${forms[@]/%/,whitelist=defense}" \
    "${guarded[@]}"
  compare "$1" debias 0.1:1.0:0.1 "${grid[@]}"
  case $(name "$1") in *_2304_* | *_8064_*) ;; *) loops "$1" "${guarded[@]}" ;; esac
  case $(name "$1") in *_leak_*) return ;; esac   # the cache is that of the other request
  compare "$1" bias 0.1:1.0:0.1 "${both[@]}"
  case $(name "$1") in *_wish_*_[1-9]*) return ;; esac   # of many texts, figures of the first
  draw "$out/$(name "$1").bias.nc" -o "$out/$(name "$1")" \
    --only bias_index,keep_rate,keep_rate_layers,span_scores
  mapfile -t plain < <(records "${forms[@]}")
  draw "$out/$(name "$1").bias.nc" -o "$out/$(name "$1")" --only keep_rate_ratios "${plain[@]}"
  case $(name "$1") in *_wish_*) return ;; esac   # gains need the other request, too
  draw "$out/$(name "$1").whitelist.nc" -o "$out/$(name "$1")" --only fairness --formats pdf,png,csv
  draw "$out/$(name "$1").debias.nc" -o "$out/$(name "$1")" --only pareto --formats pdf,png,csv
}

# What the model loses with constraints: of the kinds that are compared at every ratio, a whitelist
# where it fits; longer texts at every other ratio. Of the short ones at two budgets a whitelist of one
# sentence of the defense, λ of $debiased where the defense is first, and what else is given.
debiased=(snapkv,rounding=kvpress,window=64 tova,rounding=kvpress streaming,rounding=kvpress)
looped=("${debiased[@]}" h2o,rounding=kvpress knorm,rounding=kvpress)
loops() {
  local trace=$1 one lambda lambdas=() phrase sets=()
  shift
  case $(name "$trace") in order_defense_*) lambdas=(0 0.2 0.6 1) ;; esac
  [ -x "$torch" ] || return 0
  local every=0.1
  case $(name "$trace") in *_512_*) ;; *) every=0.2 ;; esac
  loop "$trace" ratios 0.1:0.9:$every random "${looped[@]}" "${looped[@]/%/,constrain=fair}"
  loop "$trace" whitelists 0.3:0.9:$every "${looped[@]/%/,whitelist=defense}"
  case $(name "$trace") in *_512_*) ;; *) return ;; esac
  phrase=$(finding phrase "$trace")
  for one in "${debiased[@]}"; do
    sets+=("$one,whitelist=$phrase")
    for lambda in "${lambdas[@]}"; do sets+=("$one,constrain=debias,debias_lambda=$lambda"); done
  done
  loop "$trace" constraints 0.3,0.5 "${sets[@]}" "$@"
}

# loop TRACE GROUP BUDGETS RECORD...: the model with these. Equal kept sets run once; a run of the
# model takes a second or two.
loop() {
  local trace=$1 group=$2 budgets=$3 file sets
  file=$out/$(name "$1").$2
  shift 3
  if fresh "$file.loop.nc" "$trace"; then return; fi
  mapfile -t sets < <(records "$@")
  fresh "$file.nc" "$trace" || rm -f "$file.loop.nc.unfinished"   # of other sets
  replay "$trace" "$group" "${sets[@]}" --budget "$budgets" --wo-steps 0 --save-keep
  rm -f "$file.loop.nc"   # an interrupted run goes on, which --overwrite would not
  "$torch" data/closed_loop.py "$trace" "$file.nc" -o "$file.loop.nc"
}

rules() {
  compare "$1" rules 0.1:0.9:0.1 snapkv,rounding=kvpress,window=64 tova,rounding=kvpress knorm,rounding=kvpress streaming,rounding=kvpress \
    snapkv,rounding=kvpress,window=64,constrain=fair importance defensivekv
}

needle() {
  compare "$1" needle 0.5,0.2 snapkv adakv criticalkv defensivekv layer-defensivekv restkv tova \
    knorm keydiff streaming importance oracle-mean
}

# of_all GROUP: what the traces have of a group of results, in their order, but for the sample, which
# has fewer layers and a short prompt.
of_all() {
  local trace file
  for trace in "${traces[@]}"; do
    if [ "$(name "$trace")" = sample ]; then continue; fi
    file=$out/$(name "$trace").$1.nc
    if [ -f "$file" ]; then echo "$file"; fi
  done
}

# with_loops ORDER LENGTH FIGURE RESULTS...: the figure once more, of the policies that are debiased,
# with their closed loops.
with_loops() {
  local folder=$out/instructions-$2/$1-first/loops figure=$3 file group lambda loops=() \
    groups=(ratios constraints) only=(--policy random)
  case $figure/$1 in
    fairness/*) groups+=(whitelists) ;;
    pareto/directive) groups=(ratios) ;;   # λ ran where the defense is first
  esac
  shift 3
  for file in "$@"; do
    for group in "${groups[@]}"; do
      group=${file%.*.nc}.$group.loop.nc
      if [ -f "$group" ]; then loops+=("$group"); fi
    done
  done
  [ ${#loops[@]} -gt 0 ] || return 0
  for file in "${debiased[@]}"; do only+=(--policy "$file"); done
  if [ "$figure" = fairness ]; then
    for file in "${debiased[@]}"; do
      only+=(--policy "$file,constrain=fair" --policy "$file,whitelist=defense")
    done
    only+=(--policy "snapkv,rounding=kvpress,window=64,constrain=fair,fair_scores=default")
  else
    for file in "${debiased[@]}"; do
      for lambda in 0 0.2 0.4 0.6 0.8 1; do
        only+=(--policy "$file,constrain=debias,debias_lambda=$lambda")
      done
    done
  fi
  draw "$@" "${loops[@]}" -o "$folder" --only "$figure" "${only[@]}" --formats pdf,png,csv
}

# Texts of one length whose system prompt is met by both requests: bias over orders and texts, gains
# of fair eviction and of a whitelist, and debiasing, for each order of the instructions.
instructions() {
  local length=$1 order wish leak kinds group file plain wishes=() pairs
  for order in defense directive; do
    pairs=()
    for wish in "${traces[@]}"; do
      leak=${wish/_wish_/_leak_}
      [[ $(name "$wish") == order_${order}_wish_${length}_* && " ${traces[*]} " == *" $leak "* &&
        -f $out/$(name "$wish").bias.nc ]] || continue
      pairs+=("$(name "$wish")" "$(name "$leak")")
      wishes+=("$(name "$wish")")
    done
    [ ${#pairs[@]} -gt 0 ] || continue
    for kinds in whitelist:fairness debias:pareto; do
      group=${kinds%:*}
      mapfile -t file < <(printf "$out/%s.$group.nc\n" "${pairs[@]}")
      draw "${file[@]}" -o "$out/instructions-$length/$order-first" --only "${kinds#*:}" \
        --formats pdf,png,csv
      # Of longer texts the model runs with all layers, these are of some.
      [ "$length" != 512 ] || with_loops "$order" "$length" "${kinds#*:}" "${file[@]}"
    done
  done
  [ ${#wishes[@]} -gt 0 ] || return 0
  mapfile -t file < <(printf "$out/%s.bias.nc\n" "${wishes[@]}")
  draw "${file[@]}" -o "$out/instructions-$length" --only bias_traces --pool --formats pdf,png,csv
  mapfile -t plain < <(records "${looped[@]}" snapkv,rounding=kvpress,window=64,constrain=fair)
  draw "${file[@]}" -o "$out/instructions-$length" --only keep_rate_traces --pool "${plain[@]}" \
    --formats pdf,png,csv
  mapfile -t file < <(printf "$out/%s.whitelist.nc\n" "${wishes[@]}")
  draw "${file[@]}" -o "$out/instructions-$length/whitelist" --only keep_rate_traces --pool \
    --formats pdf,png,csv
}

# What several traces, or one, are drawn together for.
together() {
  local group budget length files only
  for group in aggregation windows methods needle; do
    mapfile -t files < <(of_all "$group")
    [ ${#files[@]} -gt 0 ] || continue
    for budget in 0.5 0.35 0.2 0.1; do
      case $group/$budget in aggregation/* | */0.5 | */0.2) ;; *) continue ;; esac
      if [ "$group" = needle ]; then
        draw "${files[@]}" -o "$out/needles-$budget" --only needles --budget "$budget" \
          --formats pdf,png,csv
      else
        only=()   # of the aggregations those of Algorithm 2's selection, as results name them
        [ "$group" != aggregation ] || mapfile -t only < <(records \
          {importance,"importance,"{aggregate=single,"$max","$max,prior=head-mean"}}",$competing" \
          "importance,indicator=attention,$max,prior="{constant,head-mean}",weight=projected-l1,$competing" \
          oracle-mean)
        draw "${files[@]}" -o "$out/traces/$group-$budget" --only traces --pool --budget "$budget" \
          "${only[@]}" --formats pdf,png,csv
      fi
    done
  done
  mapfile -t files < <(of_all fragility; of_all attention)
  if [ ${#files[@]} -gt 0 ]; then
    draw "${files[@]}" -o "$out/traces" --only attention_traces --pool --formats pdf,png,csv
  fi
  mapfile -t files < <(of_all rules)
  if [ ${#files[@]} -gt 0 ]; then
    draw "${files[0]}" -o "$out/rules" --only keep_rate,bias_index,span_scores,span_order
    draw "${files[@]}" -o "$out/rules" --only span_order_traces --pool --formats pdf,png,csv
  fi
  for length in $(printf '%s\n' "${traces[@]}" | sed -n 's/.*_wish_\([0-9]*\)_.*/\1/p' | sort -u); do
    instructions "$length"
  done
  if [[ " ${traces[*]} " == *_wish_*_leak_* || " ${traces[*]} " == *_leak_*_wish_* ]]; then
    finding instructions "$out" -o "$out" >>"$out/figures.txt"
  fi
}

one_trace() {
  local what
  what="trace $1 of ${#traces[@]}, $(name "$2")"
  if has_span "$2" needle; then step "$what: needles"; needle "$2"; return; fi
  if has_span "$2" secrecy; then step "$what: order of rules"; rules "$2"; return; fi
  if has_span "$2" defense; then step "$what: eviction bias"; bias "$2"; fi
  general "$2" || return 0
  step "$what: fragility"
  fragility "$2"
  lost "$2"
  step "$what: dynamics of attention"
  attention "$2"
  step "$what: aggregation, windows, methods"
  ablation "$2"
  step "$what: merging, schedules, quantisation"
  studies/reproduce_merging.sh "$2" >>"$out/figures.txt"
}

# Seconds and number of the traces that were computed: by kind and length, by the first word, of all.
declare -A spent count

# keys TRACE: those of a trace, the nearest first, in $keys.
keys() {
  local kind=${1##*/}
  kind=${kind%_*}
  keys=("$kind" "${kind%%_*}" all)
}

# remains NUMBER: how long the traces from there on take, by the nearest that were computed.
remains() {
  local trace key seconds=0
  [ -n "${count[all]:-}" ] || return 0
  for trace in "${traces[@]:$1 - 1}"; do
    keys "$trace"
    for key in "${keys[@]}"; do
      [ -n "${count[$key]:-}" ] || continue
      seconds=$((seconds + spent[$key] / count[$key]))
      break
    done
  done
  echo "; about $((seconds / 60 + 1)) min left"
}

torch=${KVSIM_TORCH:-$KVSIM_CACHE/torch/bin/python}   # runs the model
kvsim=${KVSIM_BIN:-}
if [ -z "$kvsim" ]; then
  ready_to_run
  kvsim=build/kvsim
fi
export KVSIM_BIN=$kvsim
mkdir -p "$out"
if [ "${1:-}" = --all ]; then
  step "larger traces in ${2:-build/traces}"
  studies/reproduce_traces.sh "${2:-build/traces}"
  traces=(data/sample.h5 "${2:-build/traces}"/*.h5)
elif [ $# -gt 0 ]; then
  traces=("$@")
else
  traces=(data/sample.h5)
fi
for trace in "${traces[@]}"; do
  [ -f "$trace" ] || { say "$trace: no such file; see the head of studies/reproduce.sh"; exit 3; }
done
: >"$out/figures.txt"
step theory
theory
[ -x "$torch" ] || say "no $torch: closed loops are left out; studies/reproduce.sh --all installs it"
number=0
for trace in "${traces[@]}"; do
  number=$((number + 1))
  begun=$SECONDS
  left=$(remains $number)
  one_trace $number "$trace"
  # What was there already says nothing of the time that the rest takes.
  if [ -n "$(find "$out" -name "$(name "$trace").*.nc" -newer "$LOG")" ]; then
    keys "$trace"
    for key in "${keys[@]}"; do
      spent[$key]=$((${spent[$key]:-0} + SECONDS - begun))
      count[$key]=$((${count[$key]:-0} + 1))
    done
  fi
done
left=
step "what the traces say together"
together
say "$(grep -c 'png$' "$out/figures.txt") figures in $out/ after $(((SECONDS - started) / 60)) min;" \
  "figures.txt there lists them"
