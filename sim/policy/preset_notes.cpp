// Decisions about a preset as a whole; those about a stage stand beside the stage.
#include "sim/stages/notes.hpp"

namespace kvsim {
namespace {

const DeclareNote notes[] = {
    {"streaming", "kvpress StreamingLLMPress",
     "kvpress leaves ties to topk when the budget is below the sinks", "the first B entries"},
    {"tova", "TOVA repository; kvpress TOVAPress",
     "kvpress keeps the last token whatever its score, the original does not",
     "kept; `tova:official` does without"},
    {"h2o", "H2O repository; kvpress ObservedAttentionPress",
     "a sum with a recent window, or a mean over the queries that see the entry",
     "the mean, as kvpress and the Pitfalls have it; `h2o:official` is the original, heavy and "
     "recent halves equal"},
    {"random:prompt", "TriAttention, its control", "a new draw at each step favours what came last",
     "one draw for each entry, so that all later ones stay as likely"},
    {"r-kv", "R-KV repository",
     "a buffer of 128 tokens fills up beside the budget; the largest logit of a group enters one "
     "softmax, over what is older than the window",
     "b is the most that a head ever holds, a quarter of it leaves at once "
     "(`evict_batch=1,buffer=128` is the repository's buffer); each head has its softmax over all "
     "slots, the largest of a group counts"},
    {"morphkv", "MorphKV repository",
     "logits of a group are added before the softmax, which is taken over the slots older than the "
     "window; queries of the window see today's slots",
     "each head has its softmax when its query runs; the sums of the group count (sum_fused)"},
    {"adakv:official", "ReST-KV repository",
     "its copy multiplies by each head's share in the layer's best entries", "not done"},
    {"pyramidinfer", "PyramidInfer",
     "the method drops hidden states, so that deeper layers see other inputs",
     "selection with nested layers, which is what a trace can show of it"},
    {"criticalkv", "DefensiveKV 4", "whether the baseline is head-adaptive is not said",
     "uniform; `criticalkv:ada` is the closer comparison with `defensivekv`"},
    {"cake", "CAKE repository", "the code evicts nothing if n <= B + m", "evicts wherever n > B"},
    {"defensivekv", "DefensiveKV 3.3 and Algorithm 1",
     "\"in each layer\": heads compete, but with which floor is not said",
     "one competition per layer without a floor"},
    {"defensivekv:code", "DefensiveKV repository",
     "steps that the paper does not have: entries forced by attention, norms divided per token, "
     "pooled rows scaled to their sum",
     "as coded; the bare preset is as printed"},
    {"layer-defensivekv:code", "DefensiveKV repository",
     "protected entries compete at the layer's largest score", "as coded"},
    {"restkv", "ReST-KV 3.3",
     "what is smoothed, and for whom: a head, or the heads that share a key",
     "each query head's indicator over time, then over positions; then the mean of the group"},
    {"keepkv", "KeepKV 3.3 and Algorithm 1",
     "the text would merge first at prefill, the algorithm evicts first",
     "the algorithm; `merge_order=merge-first` is the text"},
    {"keepkv:code", "KeepKV repository",
     "unnormalised scores select; budgets and the recent share by ceiling",
     "scores as coded; the budget has the exact total of `cosine`, recent is floor(0.2 B)"},
    {"d2o:code", "D2O repository", "the first two layers and the last are left alone", "as coded"},
    {"kvcompose", "KVCompose; kvpress KVComposePress",
     "kvpress reads the context again without a request, unless it is given prompts",
     "the probe is read as captured: `repeat` has KVzip's request"},
    {"laq", "LAQ", "the paper drafts over a cache that is compressed already",
     "capture.py drafts over the full cache; the newest 32 entries stay, as in SnapKV"},
    {"laq:plus", "LAQ repository",
     "the causal mask of the sixteen queries lies on the last sixteen entries of the prompt, as if "
     "all of them stood there",
     "a draft's queries see the whole prompt, the window's what stood before them"},
    {"speckv", "SpecKV repository",
     "a small model drafts the answer; the last token of the prompt is read again, and one more "
     "than the window observes",
     "the model drafts itself, at best: its draft is the answer that follows; the window observes"},
    {"kvgrad", "kvpress KVgradPress",
     "the context is read again in chunks of 512, without what the chat template puts before it",
     "in the chunks of the probe, which are 2048 unless the capture says otherwise "
     "(`repeat:512:gradient`); all of the prompt is read"},
    {"g-kv", "G-KV repository", "the cache is compressed after every 128 tokens",
     "b is the most that a head ever holds, a quarter of it leaves at once"},
    {"triattention:decode", "TriAttention repository",
     "centres of queries come from a calibration text; the cache is compressed after every 128 "
     "tokens",
     "from all queries so far, those of the prompt included; a quarter of b leaves at once"},
};

}  // namespace
}  // namespace kvsim
