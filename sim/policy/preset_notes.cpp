// Decisions about a preset as a whole; those about a stage stand beside the stage.
#include "sim/stages/notes.hpp"

namespace kvsim {
namespace {

const DeclareNote notes[] = {
    DeclareNote({.of = "streaming",
                 .source = "kvpress StreamingLLMPress",
                 .point = "kvpress leaves ties to topk when the budget is below the sinks",
                 .reading = "the first B entries"}),
    DeclareNote({.of = "tova",
                 .source = "TOVA repository; kvpress TOVAPress",
                 .point = "kvpress keeps the last token whatever its score, the original does not",
                 .reading = "kept; `tova:official` does without"}),
    DeclareNote(
        {.of = "h2o",
         .source = "H2O repository; kvpress ObservedAttentionPress",
         .point = "a sum with a recent window, or a mean over the queries that see the entry",
         .reading = "the mean, as kvpress and the Pitfalls have it; `h2o:official` is the "
                    "original, heavy and recent halves equal"}),
    DeclareNote({.of = "random:prompt",
                 .source = "TriAttention, its control",
                 .point = "a new draw at each step favours what came last",
                 .reading = "one draw for each entry, so that all later ones stay as likely"}),
    DeclareNote({.of = "r-kv",
                 .source = "R-KV repository",
                 .point = "a buffer of 128 tokens fills up beside the budget; the largest logit of "
                          "a group enters one softmax, over what is older than the window",
                 .reading = "b is the most that a head ever holds, a quarter of it leaves at once "
                            "(`evict_batch=1,buffer=128` is the repository's buffer); each head "
                            "has its softmax over all slots, the largest of a group counts"}),
    DeclareNote({.of = "morphkv",
                 .source = "MorphKV repository",
                 .point = "logits of a group are added before the softmax, which is taken over the "
                          "slots older than the window; queries of the window see today's slots",
                 .reading = "each head has its softmax when its query runs; the sums of the group "
                            "count (sum_fused)"}),
    DeclareNote({.of = "adakv:official",
                 .source = "ReST-KV repository",
                 .point = "its copy multiplies by each head's share in the layer's best entries",
                 .reading = "not done"}),
    DeclareNote({.of = "pyramidinfer",
                 .source = "PyramidInfer",
                 .point = "the method drops hidden states, so that deeper layers see other inputs",
                 .reading = "selection with nested layers, which is what a trace can show of it"}),
    DeclareNote(
        {.of = "criticalkv",
         .source = "DefensiveKV 4",
         .point = "whether the baseline is head-adaptive is not said",
         .reading = "uniform; `criticalkv:ada` is the closer comparison with `defensivekv`"}),
    DeclareNote({.of = "cake",
                 .source = "CAKE repository",
                 .point = "the code evicts nothing if n <= B + m",
                 .reading = "evicts wherever n > B"}),
    DeclareNote({.of = "defensivekv",
                 .source = "DefensiveKV 3.3 and Algorithm 1",
                 .point = "\"in each layer\": heads compete, but with which floor is not said",
                 .reading = "one competition per layer without a floor"}),
    DeclareNote({.of = "defensivekv:code",
                 .source = "DefensiveKV repository",
                 .point = "steps that the paper does not have: entries forced by attention, norms "
                          "divided per token, pooled rows scaled to their sum",
                 .reading = "as coded; the bare preset is as printed"}),
    DeclareNote({.of = "layer-defensivekv:code",
                 .source = "DefensiveKV repository",
                 .point = "protected entries compete at the layer's largest score",
                 .reading = "as coded"}),
    DeclareNote({.of = "restkv",
                 .source = "ReST-KV 3.3",
                 .point = "what is smoothed, and for whom: a head, or the heads that share a key",
                 .reading = "each query head's indicator over time, then over positions; then the "
                            "mean of the group"}),
    DeclareNote({.of = "keepkv",
                 .source = "KeepKV 3.3 and Algorithm 1",
                 .point = "the text would merge first at prefill, the algorithm evicts first",
                 .reading = "the algorithm; `merge_order=merge-first` is the text"}),
    DeclareNote(
        {.of = "keepkv:code",
         .source = "KeepKV repository",
         .point = "unnormalised scores select; budgets and the recent share by ceiling",
         .reading = "scores as coded; the budget has the exact total of `cosine`, recent is "
                    "floor(0.2 B)"}),
    DeclareNote({.of = "d2o:code",
                 .source = "D2O repository",
                 .point = "the first two layers and the last are left alone",
                 .reading = "as coded"}),
    DeclareNote({.of = "kvcompose",
                 .source = "KVCompose; kvpress KVComposePress",
                 .point = "kvpress reads the context again without a request, unless it is given "
                          "prompts",
                 .reading = "the probe is read as captured: `repeat` has KVzip's request"}),
    DeclareNote({.of = "laq",
                 .source = "LAQ",
                 .point = "the paper drafts over a cache that is compressed already",
                 .reading = "capture.py drafts over the full cache; the newest 32 entries stay, as "
                            "in SnapKV"}),
    DeclareNote(
        {.of = "laq:plus",
         .source = "LAQ repository",
         .point = "the causal mask of the sixteen queries lies on the last sixteen entries of "
                  "the prompt, as if all of them stood there",
         .reading = "a draft's queries see the whole prompt, the window's what stood before "
                    "them"}),
    DeclareNote(
        {.of = "speckv",
         .source = "SpecKV repository",
         .point = "a small model drafts the answer; the last token of the prompt is read "
                  "again, and one more than the window observes",
         .reading = "the model drafts itself, at best: its draft is the answer that follows; "
                    "the window observes"}),
    DeclareNote({.of = "kvgrad",
                 .source = "kvpress KVgradPress",
                 .point = "the context is read again in chunks of 512, without what the chat "
                          "template puts before it",
                 .reading = "in the chunks of the probe, which are 2048 unless the capture says "
                            "otherwise (`repeat:512:gradient`); all of the prompt is read"}),
    DeclareNote(
        {.of = "g-kv",
         .source = "G-KV repository",
         .point = "the cache is compressed after every 128 tokens",
         .reading = "b is the most that a head ever holds, a quarter of it leaves at once"}),
    DeclareNote(
        {.of = "triattention:decode",
         .source = "TriAttention repository",
         .point = "centres of queries come from a calibration text; the cache is compressed "
                  "after every 128 tokens",
         .reading = "from all queries so far, those of the prompt included; a quarter of b "
                    "leaves at once"}),
};

}  // namespace
}  // namespace kvsim
