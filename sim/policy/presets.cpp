#include "sim/policy/presets.hpp"

#include <stdexcept>

#include "sim/stages/parameter.hpp"

namespace kvsim {
namespace {

// Cells shared by several rows. The parameters' own defaults are: queries=window (32),
// indicator=attention, order=asg, aggregate=mean, group=mean, allocate=uniform, nothing else.
#define KEYS_ONLY "queries=none,group=none,"
#define SNAPKV "smooth=avg,"
#define DEFENSIVE \
  "order=sag,smooth=avg,aggregate=max,group=max,prior=head-mean,weight=projected-l1,"
#define DEFENSIVE_CODE                                                         \
  "order=sga,smooth=avg-renormalized,aggregate=max,group=max,prior=head-mean," \
  "weight=projected-l1,normalize=token-heads,stage1=mass,ada_total=product,"
#define CRITICAL SNAPKV "weight=projected-l1,weight_epsilon=0.0001,stage1=ratio,"
#define CAKE "aggregate=mean-variance,smooth=avg,allocate=cake,"
#define RESTKV "indicator=output-change,aggregate=ema,smooth=aws,"
#define REHEARSAL                                                              \
  "queries=spread,indicator=rehearsal,aggregate=power-mean,power=2,group=max," \
  "prior=mean-share,prior_share=0.25,weight=projected-l2,allocate=joint,"
#define EXPECTED "queries=all,indicator=expected-attention,weight=value-l2,sinks=4,"
#define COMPACTOR "queries=all,indicator=compactor,sinks=8,recent=4,"
#define RECENT REHEARSAL "recent=0.05,first_layer_recent=0.3,joint_depth=1.5,"
#define TWICE                                                                                   \
  "queries=spread,indicator=rehearsal,rehearsal_norm=projected,aggregate=power-mean,power=1.5," \
  "join=power-mean,group=root-mean-square,prior=mean-share,prior_share=0.06,allocate=joint,"    \
  "joint_stream=1,recent=0.05,first_layer_recent=0.3,"
// Shapes that engines hold: one count per layer, one set per layer, whole pages.
#define COUNT "allocate=composite,composite_first=own,"
#define SET COUNT "union=root-mean-square,"
#define PAGES SET "block=16,block_score=root-mean-square,sinks=4,"
#define REREAD "queries=probe,indicator=reread,aggregate=max,group=max,sinks=4,"
#define COMPOSE "queries=probe,aggregate=max,normalize=add-head-mean,"
#define FUTURE "queries=future,"
// The selection of PyramidInfer, on which KeepKV merges.
#define PYRAMID_WINDOW "window=0.2,aggregate=linear,sinks=4,allocate=cosine,"
#define CAM KEYS_ONLY "indicator=position,sinks=4,schedule=decode,"
#define D2O "queries=all,aggregate=sum,sinks=4,recent=0.5,allocate=d2o,"

const std::vector<Preset> kPresets = {
    {"full", "", KEYS_ONLY "indicator=position,allocate=everything", "keeps everything", ""},
    {"random", "", KEYS_ONLY "indicator=random", "keeps a random set", "kvsim"},
    {"random", "prompt", KEYS_ONLY "indicator=random,schedule=decode,keep_prompt=yes",
     "all of the prompt and a random set of what came later", "kvsim"},
    {"streaming", "", KEYS_ONLY "indicator=position,sinks=4", "sinks and the newest entries",
     "StreamingLLM"},
    {"streaming", "official",
     KEYS_ONLY "indicator=position,sinks=4,schedule=decode,positions=cache",
     "step by step, positions counted in the cache", "StreamingLLM repository"},
    {"lm-infinite", "", KEYS_ONLY "indicator=position,sinks=100",
     "the mask of LM-Infinite, without its distance cap", "LM-Infinite"},
    {"knorm", "", KEYS_ONLY "indicator=key-norm", "keys of small norm", "Knorm"},
    {"knorm", "official", KEYS_ONLY "indicator=key-norm,skip_layers=0+1",
     "the first two layers keep everything", "Knorm repository"},
    {"keydiff", "", KEYS_ONLY "indicator=key-difference", "keys unlike the mean key", "KeyDiff"},
    {"lagkv", "", KEYS_ONLY "indicator=lag,sinks=4", "spread relative to the following block",
     "LagKV"},
    {"h2o", "", "queries=all,aggregate=mean-visible", "heavy hitters over the whole prompt",
     "H2O; kvpress ObservedAttention"},
    {"h2o", "official",
     "queries=all,aggregate=sum,granularity=query,group=none,recent=0.5,schedule=decode",
     "step by step, half heavy hitters and half recent", "H2O repository"},
    {"tova", "", "window=1,group=layer-mean", "what the last token attends to", "TOVA"},
    {"tova", "official",
     "queries=last,last_queries=1,aggregate=last,group=layer-mean,schedule=decode",
     "step by step; the newest token is not safe", "TOVA repository"},
    {"snapkv", "", SNAPKV, "pooled attention of the last tokens", "SnapKV"},
    {"snapkv", "official", SNAPKV "aggregate=sum,granularity=query,group=none",
     "a kept set per query head", "SnapKV repository"},
    {"pyramidkv", "", SNAPKV "allocate=pyramid", "SnapKV with less budget in deeper layers",
     "PyramidKV"},
    {"pyramidinfer", "",
     "window=0.2,aggregate=linear,group=layer-mean,sinks=4,allocate=cosine,nested=yes",
     "selection of PyramidInfer: each layer among what the one before kept", "PyramidInfer"},
    {"adakv", "", SNAPKV "allocate=ada", "SnapKV whose heads compete for the layer's budget",
     "AdaKV"},
    {"adakv", "official", "order=ags,smooth=max,kernel=7,allocate=ada-interpolate",
     "as in the authors' repository", "AdaKV repository"},
    {"criticalkv", "", CRITICAL, "attention first, then attention times ||v W||", "CriticalKV"},
    {"criticalkv", "ada", CRITICAL "allocate=ada,allocate_score=unweighted",
     "with the heads' budgets of AdaKV", "CriticalKV"},
    {"vatp", "", SNAPKV "weight=value-l2", "attention times ||v||, on SnapKV", "ReST-KV Table 12"},
    {"vatp", "official", "queries=all,aggregate=sum,weight=value-l1,sinks=20,recent=0.5",
     "attention times ||v||_1, on H2O", "VATP"},
    {"cake", "", CAKE, "layers by entropy and variance of their attention", "CAKE"},
    {"cake", "official", CAKE "cake_tau1=1,cake_tau2=1", "temperatures of the paper", "CAKE"},
    {"duo", "", KEYS_ONLY "indicator=position,sinks=128,recent=256,allocate=duo",
     "retrieval heads keep all, streaming heads little", "DuoAttention"},
    {"fastgen", "", "queries=all,aggregate=sum,stage1=token-class,allocate=fastgen",
     "heads keep the classes of tokens that hold their attention", "FastGen"},
    {"scissorhands", "",
     "queries=last,indicator=below-mean,aggregate=sum,recent=10,evict_batch=0.5",
     "entries that are rarely below the mean attention", "Scissorhands"},
    {"roco", "", "queries=all,order=gas,aggregate=mean-visible,sinks=4,recent=10,std_keep=0.3",
     "mean attention, entries of large deviation protected", "RoCo"},
    {"importance", "", "indicator=importance", "attention times ||v W||_1, the target itself",
     "DefensiveKV 3.1"},
    {"defensivekv", "", DEFENSIVE "allocate=ada,ada_floor=0",
     "worst case over queries and heads, with a prior", "DefensiveKV Algorithm 1"},
    {"defensivekv", "code", DEFENSIVE_CODE "allocate=ada,ada_floor=0", "as published",
     "DefensiveKV repository"},
    {"layer-defensivekv", "", DEFENSIVE "normalize=layer-sum,allocate=joint",
     "all layers compete for one budget", "DefensiveKV Algorithm 2"},
    {"layer-defensivekv", "code", DEFENSIVE_CODE "allocate=joint,protected_rank=layer-max",
     "as published", "DefensiveKV repository"},
    {"restkv", "", RESTKV, "change of the output when an entry is removed", "ReST-KV"},
    {"restkv", "code",
     "indicator=output-change-mean,aggregate=ema,smooth=aws-code,granularity=query,group=none",
     "as published: attention is aggregated first", "ReST-KV repository"},
    {"restkv", "joint", "indicator=output-change-joint,aggregate=ema,smooth=aws",
     "change of the output by all heads that share the entry", "kvsim"},
    {"rehearsal", "", REHEARSAL "recent=4,joint_depth=1",
     "what the prompt would look at if it were read once more behind itself", "kvsim"},
    {"rehearsal", "recent", RECENT, "more of the newest entries, most in the first layer", "kvsim"},
    {"expected-attention", "", EXPECTED, "attention that normally distributed later queries pay",
     "Expected Attention"},
    {"expected-attention", "ada", EXPECTED "weight_epsilon=0.01,allocate=ada",
     "the heads of a layer compete", "kvpress AdaKVPress(ExpectedAttentionPress)"},
    {"expected-attention", "joint", EXPECTED "allocate=joint",
     "all heads of all layers compete for one budget", "kvsim"},
    {"triattention", "", "queries=all,indicator=trigonometric,group=max",
     "logits of the mean query at distances ahead", "TriAttention"},
    {"triattention", "decode",
     "queries=all,indicator=trigonometric,group=max,schedule=decode,evict_batch=0.25,"
     "keep_prompt=yes",
     "while decoding: the same from all queries so far; the prompt stays",
     "TriAttention repository"},
    {"attention-matching", "",
     "queries=all,indicator=unmasked-attention,aggregate=power-mean,power=2,"
     "group=root-mean-square,allocate=joint",
     "keys by root mean square of attention, all layers in competition", "Attention Matching"},
    {"attention-matching", "fitted",
     "queries=all,indicator=unmasked-attention,aggregate=power-mean,power=2,"
     "group=root-mean-square,allocate=joint,merge=attention-fit,votes=bias",
     "the same keys; biases and values fitted to what the prompt's queries see",
     "Attention Matching"},
    {"compactor", "", COMPACTOR, "leverage of keys and attention without a mask", "Compactor"},
    {"lava", "", "smooth=max,kernel=7,group=max,weight=value-l1-max,allocate=lava",
     "layers by entropy of the scores, heads by attention times the largest value", "LAVa"},
    {"caote", "", "indicator=value-change-mean,smooth=avg",
     "error of the head's output when one entry goes, on SnapKV", "CAOTE"},
    {"caote", "tova", "window=1,indicator=value-change-mean,group=layer-mean", "the same on TOVA",
     "CAOTE"},
    {"cur", "", KEYS_ONLY "indicator=cur,sinks=4", "key and value norms within a block", "CurDKV"},
    {"rehearsal", "recent-uniform", RECENT "allocate=uniform", "the same budget for each head",
     "kvsim"},
    {"rehearsal", "recent-count", RECENT COUNT, "as many entries in all heads of a layer", "kvsim"},
    {"rehearsal", "recent-set", RECENT SET, "one set for all heads of a layer", "kvsim"},
    {"rehearsal", "recent-pages", RECENT PAGES, "one set of whole pages for all heads of a layer",
     "kvsim"},
    {"rehearsal", "reread", TWICE,
     "moved queries of the prompt and of a real second reading, by what entries add to the stream",
     "kvsim"},
    {"rehearsal", "reread-uniform",
     TWICE "queries=all,join=max,group=mean,recent=0.02,allocate=uniform",
     "both readings, the same budget for each head", "kvsim"},
    {"rehearsal", "reread-count", TWICE COUNT "joint_stream=0.5",
     "both readings, as many entries in all heads of a layer", "kvsim"},
    {"rehearsal", "reread-set", TWICE SET "joint_stream=0.5",
     "both readings, one set for all heads of a layer", "kvsim"},
    {"rehearsal", "reread-pages", TWICE PAGES,
     "both readings, one set of whole pages for all heads of a layer", "kvsim"},
    {"kvzip", "", REREAD "allocate=joint", "what a second reading of the prompt looks at", "KVzip"},
    {"kvzip", "uniform", REREAD "", "what a second reading looks at, the same budget for each head",
     "KVzip repository"},
    {"kvzip", "set", REREAD "union=mean", "one set for all heads of a layer, as many in all layers",
     "KVzip; shape: kvsim"},
    {"kvzip", "pages", REREAD "union=mean,block=16", "the same in whole pages",
     "KVzip; shape: OpenVINO"},
    {"kvzip-plus", "", REREAD "reread_norm=residual,allocate=joint",
     "kvzip, times what an entry adds over the norm of the residual stream", "KVzap"},
    {"kvgrad", "", REREAD "reread_norm=gradient,allocate=joint",
     "kvzip, times what an entry adds and what the model's last layer makes of it", "KVgrad"},
    {"kvcompose", "", COMPOSE "allocate=composite",
     "each head its own entries by a second reading, as many in all heads of a layer", "KVCompose"},
    {"kvcompose", "unstructured", COMPOSE "allocate=joint",
     "the same scores, all heads of all layers compete", "KVCompose"},
    {"kvcompose", "set", COMPOSE "allocate=composite,union=mean",
     "one set for all heads of a layer", "KVCompose; shape: kvsim"},
    {"laq", "", SNAPKV "queries=probe,probe=draft,probe_first=8,recent=32",
     "what the first tokens of the model's own draft attend to", "LAQ"},
    {"laq", "plus",
     "window=8,join=power-mean,power=1,probe=draft,probe_first=8,smooth=max,kernel=7,"
     "granularity=query,group=none",
     "the newest tokens and the first of the model's own draft", "LAQ repository"},
    {"speckv", "", "join=max,probe=draft,aggregate=max,group=max,smooth=max,kernel=7",
     "the newest tokens and a draft of the whole answer, each entry by its largest attention",
     "SpecKV repository"},
    {"r-kv", "",
     "window=8,order=gas,group=max,smooth=max,kernel=7,redundancy=key-cosine,redundancy_mix=0.07,"
     "schedule=decode,evict_batch=0.25",
     "while decoding: attention of the newest tokens, less what other keys say, too", "R-KV"},
    {"g-kv", "",
     "window=16,order=gas,group=max,memory=decayed-max,redundancy=key-cosine-scaled,"
     "redundancy_mix=0.5,schedule=decode,evict_batch=0.25",
     "while decoding: r-kv with the decayed largest score of earlier compressions", "G-KV"},
    {"morphkv", "", "order=gas,group=sum,aggregate=mean,schedule=decode",
     "step by step: what the newest tokens attend to, added up", "MorphKV"},
    {"convex", "", PYRAMID_WINDOW "merge=convex", "the selection of keepkv, slots are plain means",
     "KeepKV Eq. 5"},
    {"cam", "", CAM "merge=cam", "values of the oldest are spread over later slots, by a draw",
     "CaM repository"},
    {"cam", "expected", CAM "merge=cam-expected", "the expectation of the draw", "kvsim"},
    {"d2o", "", D2O "merge=d2o", "layers by variance of attention, merging by cosine", "D2O"},
    {"d2o", "code", D2O "merge=d2o-code,granularity=query,group=none,skip_layers=0+1+-1",
     "as published", "D2O repository"},
    {"kvmerger", "", "queries=all,aggregate=sum,merge=kvmerger",
     "runs of similar keys become one slot", "KVMerger"},
    {"keepkv", "", PYRAMID_WINDOW "merge=keepkv,votes=count",
     "merging that keeps the mass at the predicted scores", "KeepKV Algorithm 1"},
    {"keepkv", "bias", PYRAMID_WINDOW "merge=keepkv-bias,votes=bias",
     "the mass is kept by a bias per query head", "kvsim"},
    {"keepkv", "code",
     PYRAMID_WINDOW "indicator=exp-logit,granularity=query,group=none,merge=keepkv-code,"
                    "votes=count,score_estimate=window-mean,estimate_window=0.2",
     "as published", "KeepKV repository"},
    {"external", "", KEYS_ONLY "indicator=external", "scores from a file", "kvsim"},
    {"oracle-mean", "", FUTURE "indicator=importance-share,aggregate=sum,group=sum",
     "hindsight: best mean retained importance", "kvsim"},
    {"oracle-stream", "",
     FUTURE "aggregate=power-mean,power=2,group=max,weight=projected-l2,allocate=joint,"
            "joint_stream=1",
     "hindsight: entries of all layers by what they add to the residual stream", "kvsim"},
    {"oracle-greedy", "", FUTURE "indicator=elimination,allocate=joint,joint_stream=1",
     "hindsight: entries go one after the other, those first that cost the stream least", "kvsim"},
    {"oracle-max", "", FUTURE "indicator=importance,aggregate=max,group=max",
     "hindsight: largest importance at any later step", "kvsim; DefensiveKV 3.1"},
    {"quest", "",
     KEYS_ONLY "granularity=query,skip_layers=0+1,indicator=page-bound,block=16,schedule=reads",
     "pages of 16 that a step's query can look at most in; nothing leaves", "Quest"},
    {"oracle-step", "", FUTURE "indicator=importance,aggregate=each,group=sum,schedule=per-step",
     "hindsight: the best set at each step", "kvsim"},
    {"oracle-snapkv", "", FUTURE SNAPKV, "SnapKV whose window is the future", "kvsim"},
    {"oracle-restkv", "", FUTURE "indicator=output-change", "ReST-KV's indicator on the future",
     "kvsim"},
};

#undef KEYS_ONLY
#undef SNAPKV
#undef KVPRESS
#undef DEFENSIVE
#undef DEFENSIVE_CODE
#undef CRITICAL
#undef CAKE
#undef RESTKV
#undef REHEARSAL
#undef RECENT
#undef TWICE
#undef COUNT
#undef SET
#undef PAGES
#undef REREAD
#undef COMPOSE
#undef FUTURE
#undef PYRAMID_WINDOW
#undef CAM
#undef D2O
#undef EXPECTED
#undef COMPACTOR

}  // namespace

const std::vector<Preset>& presets() { return kPresets; }

const Preset* find_preset(std::string_view name, std::string_view variant) {
  for (const Preset& preset : kPresets)
    if (preset.name == name && preset.variant == variant) return &preset;
  return nullptr;
}

std::string preset_title(const Preset& preset) {
  return preset.variant.empty() ? preset.name : preset.name + ":" + preset.variant;
}

Settings preset_settings(const Preset& preset) {
  static const Settings fallbacks = [] {
    Settings all;
    for (const Parameter* p : parameters()) all.set(Key(p->number), p->fallback);
    return all;
  }();
  Settings settings = fallbacks;
  std::string_view rest = preset.cells;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view cell = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t equals = cell.find('=');
    const Parameter* p = find_parameter(cell.substr(0, equals));
    if (!p) throw std::logic_error("unknown key in the preset table: " + std::string(cell));
    // A later cell replaces an earlier one.
    settings.set(Key(p->number), canonical_value(*p, cell.substr(equals + 1)));
  }
  return settings;
}

}  // namespace kvsim
