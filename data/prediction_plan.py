"""The texts of the prediction study, and which of them are set aside.

The rule, written down before any of them was looked at: the kinds on which a first measurement had
been made (a report to summarise, labelled examples, code, instructions) are for searching a
predictor; kinds never measured before are set aside, and a predictor is reported on them alone.
"""

SEARCHED = ("summary", "fewshot", "code", "order_defense_wish")
SET_ASIDE = ("questions", "switch", "needles4", "counting")

PROMPT_TOKENS = 704   # at most
STEPS = 128           # at most
SEED = 0              # of the generated texts
BUDGETS = (0.1, 0.2, 0.35, 0.5, 0.7)

# Every preset that compresses once, after the prompt, and drops what it does not keep. Those that
# look ahead are run too, but correlations are over the others unless they say otherwise.
EVICTION = (
    "random", "streaming", "streaming:kvpress", "lm-infinite", "knorm", "knorm:official",
    "knorm:kvpress", "keydiff", "lagkv", "h2o", "h2o:kvpress", "tova", "tova:kvpress", "snapkv",
    "snapkv:official", "snapkv:kvpress", "pyramidkv", "pyramidkv:kvpress", "pyramidinfer", "adakv",
    "adakv:official", "adakv:kvpress", "criticalkv", "criticalkv:ada", "criticalkv:kvpress",
    "vatp", "vatp:official", "cake", "cake:official", "scissorhands", "roco", "importance",
    "defensivekv", "defensivekv:code", "layer-defensivekv", "layer-defensivekv:code", "restkv",
    "restkv:code", "restkv:joint",
)  # fmt: skip
HINDSIGHT = ("oracle-mean", "oracle-max")
# Measured beside what every results file holds.
METRICS = ("output_error_absolute", "importance_pearson", "importance_cosine", "dropped_attention")

# The predictor, chosen on SEARCHED before the results of SET_ASIDE were opened: stream_error_rms,
# the root mean square over steps of
#   sqrt(sum over layers of |output error, absolute|^2) / residual_norm of the last layer,
# best or next to best of all candidates there (mean Spearman 0.90 over texts and budgets; the worst
# residual_error, mean over layers, has 0.73).
PREDICTOR = "stream_error_rms"
