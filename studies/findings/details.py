"""What the model loses with the papers' smaller claims: rounding, merging again and again, merging
before evicting. Tables of studies/reproduction/, of studies/losses/{int4,int2,kivi,periodic,merge-first}.csv,
which `studies/losses.sh DIR STUDY...` makes.
"""

import numpy as np

from kvsim.plots import statistics
from . import plan, runs
from .replays import ratio

TEXTS = plan.SHORT
STUDIES = ("int4", "int2", "kivi", "periodic", "merge-first")


def study_of(studies):
    """Their runs, as far as their tables are there."""
    return runs.Study(*(path for path in (studies / f"losses/{name}.csv" for name in STUDIES)
                        if path.is_file()))


def logs(study, column, one, other=None):
    """Logarithms of a number, or of its ratio to another's, by text; `one`, `other`: policy, budget."""
    found = [[study.value(column, text, *pair) for text in TEXTS] for pair in (one, other) if pair]
    values = np.log(found[0]) - (np.log(found[1]) if other else 0)
    return values[np.isfinite(values)]


def middle(values):
    """Geometric mean alone."""
    return f"{np.exp(values.mean()):.3f}" if values.size else "-"


def level(values):
    """Geometric mean with its interval, nats or a share."""
    if not values.size:
        return "-"
    middle, ends = statistics.over_traces(values)
    return "{:.2g} [{:.2g}, {:.2g}]".format(*np.exp([middle, *ends]))


def int4(studies):
    """DefensiveKV's Table 8: a tenth of the entries, or four tenths with 4 bits."""
    study = study_of(studies)
    rounded = len(plan.INT4) // 2
    made = []
    for policy, with_bits in zip(plan.INT4[:rounded], plan.INT4[rounded:]):
        few, bits, many = (policy, 0.1), (with_bits, 0.4), (policy, 0.4)
        made.append([f"`{policy}`",
                     ", ".join(middle(logs(study, "stream_error", one)) for one in (few, bits, many)),
                     *(level(logs(study, "kl", one)) for one in (few, bits, many)),
                     ratio(logs(study, "kl", bits, few)), ratio(logs(study, "kl", bits, many))])
    every = (plan.ALL_INT2, 1.0)
    made.append(["everything, 2 bits", middle(logs(study, "stream_error", every)),
                 level(logs(study, "kl", every)), *["-"] * 4])
    return (["policy", "stream error", "loss: 10 %", "40 %, int4", "40 %", "40 % with int4 by 10 %",
             "with int4 by without"], made)


def kivi(studies):
    """ReST-KV's Figure 11: entries or bits."""
    study = study_of(studies)
    restkv4, snapkv4, restkv2, vectors4, vectors2 = plan.KIVI
    base = (restkv2, 1.0)
    listed = {
        "half of the entries, 4 bits (KIVI)": ("1/5", restkv4, 0.5),
        "the same, SnapKV's entries": ("1/5", snapkv4, 0.5),
        "all, 2 bits (KIVI)": ("a little less", *base),
        "an eighth of the entries, 4 bits (KIVI)": ("1/16", restkv4, 0.125),
        "the same, of SnapKV": ("1/16", snapkv4, 0.125),
        "all, 2 bits (KVQuant, 1 % outliers apart)": ("as KIVI", vectors2, 1.0),
        "all, 4 bits (KVQuant, 1 % outliers apart)": ("as KIVI", vectors4, 1.0),
        "all, 4 bits (KIVI)": ("as KVQuant", restkv4, 1.0),
    }
    return (["what is kept", "memory", "stream error", "loss, nats", "loss by all with 2 bits (KIVI)"],
            [[name, memory, level(logs(study, "stream_error", (policy, budget))),
              level(logs(study, "kl", (policy, budget))),
              "1" if (policy, budget) == base else ratio(logs(study, "kl", (policy, budget), base))]
             for name, (memory, policy, budget) in listed.items()])


def periodic(studies):
    """By how much choosing anew changes errors and the loss, budget 0.3."""
    study = study_of(studies)
    made = []
    for policy in dict.fromkeys(one.split(",")[0] for one in plan.PERIODIC):
        for column, name in (("output_error", "output error"), ("stream_error", "stream error"),
                             ("kl", "loss, nats")):
            once = (policy, 0.3)
            made.append([f"`{policy}`", name, level(logs(study, column, once)), *(
                ratio(logs(study, column, (f"{policy},schedule=periodic{period}", 0.3), once))
                for period in plan.PERIODS.values())])
    return ["policy", "", "once", *(f"every {one} steps" for one in plan.PERIODS)], made


def merge_first(studies):
    """Merging before evicting by merging after it."""
    study = study_of(studies)
    half = len(plan.MERGE_FIRST) // 2
    budgets = plan.STUDIES["merge-first"].budgets
    return (["policy", "measure", *(f"{one:g}" for one in budgets)],
            [[f"`{policy}`", name, *(ratio(logs(study, column, (first, budget), (policy, budget)))
                                     for budget in budgets)]
             for policy, first in zip(plan.MERGE_FIRST[:half], plan.MERGE_FIRST[half:])
             for column, name in (("stream_error", "stream error"),
                                  ("output_error", "output error"), ("kl", "loss"))])
