"""What the study of model losses runs: texts, budgets and groups of policies.

`scripts/losses.sh` runs it. docs/losses.md says what the model loses, docs/prediction.md which
measure of the replay foretells it, docs/claims.md what follows for the papers' claims.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TextPlan:
    """A generated text (data/texts): its kind, the longest prompt in tokens, and its seed."""

    kind: str
    prompt_tokens: int
    seed: int

    @property
    def stem(self) -> str:
        """Name of its files, as kvsim make-traces names them."""
        return f"{self.kind}_{self.prompt_tokens}_{self.seed}"


# A predictor is searched on the first half and reported on the half set aside alone. The rule was
# written down before any of them was looked at: kinds on which a first measurement had been made
# (a report to summarise, labelled examples, code, instructions) are for searching. The long texts
# keep the halves of their kinds; they have another seed, so other words.
SEARCHED = ("summary", "fewshot", "code", "order_defense_wish")
SET_ASIDE = ("questions", "switch", "needles4", "counting")

SHORT = tuple(TextPlan(kind, 704, 0) for kind in SEARCHED + SET_ASIDE)
LONG = tuple(TextPlan(kind, 2304, 1) for kind in
             ("summary", "fewshot", "code", "questions", "switch", "counting"))
TEXTS = SHORT + LONG
# Made and opened after `rehearsal:reread` was fixed: six as people write them, seven generated ones
# with other words, three compressed before the question is known.
FRESH = tuple(TextPlan(kind, 704, seed) for kind, seed in (
    ("python", 1), ("python", 2), ("manual", 1), ("manual", 2), ("licence", 1), ("perl", 1),
    *((kind, 41) for kind in ("switch", "questions", "fewshot", "summary", "needles4", "counting",
                              "code", "questions_agnostic", "summary_agnostic",
                              "needles4_agnostic"))))
STEPS = 128           # later tokens, at most
BUDGETS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7)

# Presets that compress once, after the prompt, and drop what they do not keep: one of each family
# and the methods of the papers first, then the others and the variants.
PRESETS = (
    "random", "streaming", "knorm", "keydiff", "h2o", "tova", "snapkv", "pyramidkv", "adakv",
    "criticalkv", "vatp", "cake", "importance", "defensivekv", "defensivekv:code",
    "layer-defensivekv", "layer-defensivekv:code", "restkv",
)
VARIANTS = (
    "streaming:kvpress", "lm-infinite", "knorm:official", "knorm:kvpress", "lagkv", "h2o:kvpress",
    "tova:kvpress", "snapkv:official", "snapkv:kvpress", "pyramidkv:kvpress", "pyramidinfer",
    "adakv:official", "adakv:kvpress", "criticalkv:ada", "criticalkv:kvpress", "vatp:official",
    "cake:official", "scissorhands", "roco", "restkv:code", "restkv:joint",
)
EVICTION = PRESETS + VARIANTS
# These look ahead: what hindsight by one rule could have kept. None of them is a floor for the loss.
HINDSIGHT = ("oracle-mean", "oracle-max")
HINDSIGHT_VARIANTS = ("oracle-snapkv", "oracle-restkv")
# What a text can lose least, as far as it is known: the least of these on it. Only where all have run.
FLOOR = "least of hindsight"
FLOOR_OF = ("oracle-mean", "oracle-restkv", "oracle-stream")
# One part of a method changed at a time, for the claims of docs/claims.md.
DEFENSIVE_PARTS = (
    "layer-defensivekv,smooth=none",
    "layer-defensivekv,aggregate=mean,group=mean",
    "layer-defensivekv,prior=none",
    "layer-defensivekv,aggregate=mean,group=mean,prior=none",
    "layer-defensivekv,allocate=ada,ada_floor=0",
    "layer-defensivekv,allocate=uniform",
    "layer-defensivekv,prior=constant",
    "layer-defensivekv,prior=constant,prior_value=0.001",
    "layer-defensivekv,window=8",
    "layer-defensivekv,window=64",
    "snapkv,allocate=joint",
    "importance,allocate=joint",
    "importance,aggregate=max,group=max",
    "importance,aggregate=single",
    "adakv,aggregate=max,group=max,prior=head-mean",
    "criticalkv:ada,aggregate=max,group=max,prior=head-mean",
)
RESTKV_PARTS = (
    "restkv,aggregate=mean",
    "restkv,smooth=none",
    "restkv,indicator=attention",
    "restkv,indicator=attention,aggregate=mean,smooth=none",
    "restkv,indicator=attention-value",
    "restkv,smooth=avg",
    "restkv,aws_beta=100",
    "restkv,allocate=ada",
    "restkv,allocate=pyramid",
)
# The policies found with kvsim (docs/rehearsal.md), and each of their parts changed; those of the
# second run on texts that are not in this study.
FOUND = "rehearsal"
RECENT = f"{FOUND}:recent"
FOUND_PARTS = tuple(f"{FOUND},{change}" for change in (
    "indicator=attention", "queries=last,last_queries=64", "prior=none", "prior_share=1",
    "weight=none", "joint_depth=0", "allocate=ada,ada_floor=0", "allocate=uniform", "aggregate=mean",
    "aggregate=max", "group=mean", "recent=0",
))
RECENT_PARTS = tuple(f"{RECENT},{change}" for change in (
    "indicator=attention", "allocate=uniform", "allocate=ada,ada_floor=0", "prior=none",
    "weight=none", "aggregate=mean", "queries=last,last_queries=64", "joint_depth=0",
    "joint_depth=1", "first_layer_recent=0", "recent=0", "prior_share=1", "aggregate=max",
))
# Methods that read the prompt twice, beside the best that read it once; `rehearsal:recent` with the
# queries of a real second reading, alone and beside its own.
REREAD = f"{FOUND}:reread"
RIVAL = "kvzip"
TWICE = ("snapkv", "layer-defensivekv:code", RIVAL, "kvzip-plus", "kvzip:uniform",
         "kvzip,allocate=ada,ada_floor=0", RECENT, f"{RECENT},queries=probe", f"{RECENT},join=max",
         f"{RECENT},join=power-mean", REREAD, "oracle-mean", "oracle-stream")
ONCE = ("expected-attention", "expected-attention:joint", "triattention", "attention-matching",
        "compactor", "lava", "caote")
# Slots are merged or quantised: the model runs with changed keys and values.
MERGING = ("convex", "d2o", "d2o:code", "kvmerger", "keepkv", "keepkv:bias", "keepkv:code",
           "snapkv,merge=convex", "snapkv,merge=d2o", "snapkv,merge=value-fold",
           "snapkv,merge=keepkv-bias")
# The same entries as of merging policies, dropped: what merging itself is worth.
UNMERGED = ("convex,merge=drop", "keepkv:code,merge=drop")
# KeepKV's Figure 5: its merging on two methods that drop, H2O while it decodes.
ON_EVICTION = ("h2o:official,merge=keepkv-code", "pyramidinfer,merge=keepkv-code")
# DefensiveKV's Table 3 beside the windows of DEFENSIVE_PARTS.
WINDOWS = ("layer-defensivekv,window=16",)
# The set changes over the steps: it is chosen from the run's own queries.
STEPWISE = ("cam", "cam:expected", "h2o:official", "tova:official", "streaming:official")

# Presets that no group runs, and why. Every other that no group names is run by the group "added".
LEFT_OUT = {
    "full": "loses nothing",
    "duo": "needs a file of heads",
    "external": "needs a file of scores",
    "oracle-step": "chooses a set for each step, which no model can be run with",
}

# Groups of policies, each a results file and a run of its own: name -> (policies, budgets). The
# policies of "added" are asked of the program: policies_of().
GROUPS = {
    "presets": (PRESETS + HINDSIGHT, BUDGETS),
    "variants": (VARIANTS + HINDSIGHT_VARIANTS, BUDGETS),
    "found": ((FOUND, RECENT), BUDGETS),
    "rehearsal": (FOUND_PARTS, (0.1, 0.2, 0.35, 0.5)),
    "parts": (DEFENSIVE_PARTS + RESTKV_PARTS, (0.1, 0.2, 0.35, 0.5)),
    "merging": (MERGING, BUDGETS),
    "unmerged": (UNMERGED, BUDGETS),
    "stepwise": (STEPWISE, BUDGETS),
    "floor": (("oracle-stream",), BUDGETS),
    "windows": (WINDOWS, (0.1, 0.2, 0.35, 0.5)),
    "on-eviction": (ON_EVICTION, BUDGETS),
    "added": ((), BUDGETS),
}
# Those of the texts in FRESH, which have nothing else.
FRESH_GROUPS = {"twice": (TWICE, (0.1, 0.2, 0.35, 0.5)), "once": (ONCE, (0.1, 0.2, 0.35, 0.5))}
EVERY_GROUP = GROUPS | FRESH_GROUPS


def policies_of(group, presets):
    """The policies of a group; `presets`: all that the program has. A preset that is newer than the
    groups is in "added", without an edit here.
    """
    if group != "added":
        return EVERY_GROUP[group][0]
    named = {policy for policies, _ in GROUPS.values() for policy in policies}
    return tuple(one for one in presets if one not in named and one not in LEFT_OUT)


# Measured beside what every results file holds.
METRICS = ("output_error_absolute", "importance_pearson", "importance_cosine", "dropped_attention")

# The predictor, chosen on SEARCHED before the results of SET_ASIDE were opened: stream_error_rms,
# the root mean square over steps of
#   sqrt(sum over layers of |output error, absolute|^2) / residual_norm of the last layer,
# best or next to best of all candidates there (mean Spearman 0.90 over texts and budgets; the worst
# residual_error, mean over layers, has 0.73).
PREDICTOR = "stream_error_rms"
