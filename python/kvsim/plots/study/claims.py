"""Each claim of the papers by three measures: python -m kvsim.plots.study.claims DIR

DIR holds the runs that scripts/losses.sh makes, or is the table docs/losses/losses.csv. A claim compares a policy with another that differs
in the part the claim is about. Printed as Markdown, per budget: the ratio of the paper's own measure
(turned so that less is better), of the stream error, and of the model's loss, geometric means over
texts with 95 % intervals; below 1 the part helps. `*` marks an interval without 1 around a mean that
is an effect (statistics.SMALLEST_EFFECT).
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import statistics
from . import plan, runs

# Measure of a paper -> its name in the table, and how it becomes a loss.
OWN = {
    "retained_mean": ("1 - retained importance, mean", lambda values: 1 - values),
    "retained_worst": ("1 - retained importance, worst", lambda values: 1 - values),
    "outliers": ("share of outliers", lambda values: values),
    "output_error": ("output error", lambda values: values),
}
COMMON = {"stream_error": "stream error", "kl": "**loss (KL)**"}
BUDGETS = (0.1, 0.2, 0.35, 0.5)
SHORT_BUDGETS = BUDGETS[1:]


HEAD = """# The papers' claims by three measures

Made by `scripts/losses.sh` from [losses.csv](losses/losses.csv); [reproduction.md](reproduction.md) says what follows.
A claim compares a policy with another that differs in the part the claim is about. Numbers are ratios, geometric
means over texts with 95 % intervals over texts (Student's t on logarithms, [as simulated](losses.md#intervals-over-few-texts)).
Below 1 the part helps. `*` marks an interval without 1 around a mean below 0.95 or above 1.05. `**` marks what is left
of it when all comparisons of this page by the same measure are corrected for (Holm). The first row of a claim is the paper's
own measure (retained importance as what is missing to 1). The second is the stream error of the replay. The third is what
the model loses. Texts on which both losses are 0 do not count."""


@dataclass(frozen=True)
class Claim:
    """`policy` is to be better than `without`, by the paper's measure `own`."""

    paper: str
    part: str
    policy: str
    without: str
    own: str = "retained_worst"


LAYER = "layer-defensivekv"
CLAIMS = (
    Claim("DefensiveKV", "the method: Algorithm 2 against SnapKV", LAYER, "snapkv"),
    Claim("DefensiveKV", "its code against SnapKV", f"{LAYER}:code", "snapkv"),
    Claim("DefensiveKV", "the method against CriticalKV", LAYER, "criticalkv"),
    Claim("DefensiveKV", "its code against CriticalKV", f"{LAYER}:code", "criticalkv"),
    Claim("DefensiveKV", "the method without pooling against SnapKV", f"{LAYER},smooth=none",
          "snapkv"),
    Claim("DefensiveKV", "Algorithm 1 against SnapKV", "defensivekv", "snapkv"),
    Claim("DefensiveKV", "Algorithm 1's code against AdaKV", "defensivekv:code", "adakv"),
    Claim("DefensiveKV", "maximum, not mean", LAYER, f"{LAYER},aggregate=mean,group=mean"),
    Claim("DefensiveKV", "prior, with the maximum", LAYER, f"{LAYER},prior=none"),
    Claim("DefensiveKV", "maximum and prior together", LAYER,
          f"{LAYER},aggregate=mean,group=mean,prior=none"),
    Claim("DefensiveKV", "head's own mean as prior, not 1e-4", LAYER, f"{LAYER},prior=constant"),
    Claim("DefensiveKV", "head's own mean as prior, not 1e-3", LAYER,
          f"{LAYER},prior=constant,prior_value=0.001"),
    Claim("DefensiveKV", "layers compete, not the heads of a layer", LAYER,
          f"{LAYER},allocate=ada,ada_floor=0"),
    Claim("DefensiveKV", "layers compete, not uniform budgets", LAYER, f"{LAYER},allocate=uniform"),
    Claim("DefensiveKV", "smoothing", LAYER, f"{LAYER},smooth=none"),
    Claim("DefensiveKV", "a window of 64, not 32", f"{LAYER},window=64", LAYER),
    Claim("DefensiveKV", "a window of 32, not 8", LAYER, f"{LAYER},window=8"),
    Claim("DefensiveKV", "joint allocation without the rest, on SnapKV", "snapkv,allocate=joint",
          "snapkv"),
    Claim("DefensiveKV", "maximum alone, on plain importance",
          "importance,aggregate=max,group=max", "importance"),
    Claim("DefensiveKV", "mean over the window, not one query", "importance",
          "importance,aggregate=single"),
    Claim("DefensiveKV", "on AdaKV (Table 7)", "adakv,aggregate=max,group=max,prior=head-mean",
          "adakv"),
    Claim("DefensiveKV", "on CriticalKV (Table 7)",
          "criticalkv:ada,aggregate=max,group=max,prior=head-mean", "criticalkv:ada"),
    Claim("ReST-KV", "the method against SnapKV", "restkv", "snapkv", "output_error"),
    Claim("ReST-KV", "the method against CAKE", "restkv", "cake", "output_error"),
    Claim("ReST-KV", "the method against TOVA", "restkv", "tova", "output_error"),
    Claim("ReST-KV", "the method against StreamingLLM", "restkv", "streaming", "output_error"),
    Claim("ReST-KV", "the method against H2O", "restkv", "h2o", "output_error"),
    Claim("ReST-KV", "its code against SnapKV's, both of one granularity", "restkv:code",
          "snapkv:official", "output_error"),
    Claim("ReST-KV", "output change, not attention (Table 3)", "restkv",
          "restkv,indicator=attention", "output_error"),
    Claim("ReST-KV", "output change, not attention times value norm (Table 12)", "restkv",
          "restkv,indicator=attention-value", "output_error"),
    Claim("ReST-KV", "moving average over time, not mean (Table 3)", "restkv",
          "restkv,aggregate=mean", "output_error"),
    Claim("ReST-KV", "adaptive smoothing, not none (Table 3)", "restkv", "restkv,smooth=none",
          "output_error"),
    Claim("ReST-KV", "adaptive smoothing, not a fixed window (Table 13)", "restkv",
          "restkv,smooth=avg", "output_error"),
    Claim("ReST-KV", "all three against none (Table 3)", "restkv",
          "restkv,indicator=attention,aggregate=mean,smooth=none", "output_error"),
    Claim("ReST-KV", "beta 100, at which the window moves, not 2000", "restkv,aws_beta=100",
          "restkv", "output_error"),
    Claim("ReST-KV", "with heads' budgets of AdaKV (Table 5)", "restkv,allocate=ada", "restkv",
          "output_error"),
    Claim("ReST-KV", "with a pyramid of budgets (Table 4)", "restkv,allocate=pyramid", "restkv",
          "output_error"),
    Claim("KeepKV", "Eq. 7 against convex merging", "keepkv", "convex", "output_error"),
    Claim("KeepKV", "its code against convex merging", "keepkv:code", "convex", "output_error"),
    Claim("KeepKV", "its code against D2O", "keepkv:code", "d2o", "output_error"),
    Claim("KeepKV", "its code against H2O", "keepkv:code", "h2o", "output_error"),
    Claim("KeepKV", "its code against CaM", "keepkv:code", "cam", "output_error"),
    Claim("KeepKV", "mass kept by a bias against convex merging", "keepkv:bias", "convex",
          "output_error"),
    Claim("KeepKV", "convex merging against dropping the same entries", "convex",
          "convex,merge=drop", "output_error"),
    Claim("KeepKV", "mass kept by a bias against dropping the same entries", "keepkv:bias",
          "convex,merge=drop", "output_error"),
    Claim("KeepKV", "its code against dropping the same entries", "keepkv:code",
          "keepkv:code,merge=drop", "output_error"),
    Claim("KeepKV", "convex merging against dropping, on SnapKV", "snapkv,merge=convex", "snapkv",
          "output_error"),
    Claim("KeepKV", "D2O's merging against dropping, on SnapKV", "snapkv,merge=d2o", "snapkv",
          "output_error"),
    Claim("KeepKV", "merging by bias against dropping, on SnapKV", "snapkv,merge=keepkv-bias",
          "snapkv", "output_error"),
    Claim("kvsim", "values of what is dropped folded in, on SnapKV", "snapkv,merge=value-fold",
          "snapkv", "output_error"),
)


def ratios(study, claim, column, budget, texts):
    """Logarithms of the ratios of one measure, by text that has both policies."""
    own = [text for text in texts if not np.isnan(
        study.value("kl", text, claim.policy, budget) +
        study.value("kl", text, claim.without, budget))]
    turn = OWN[column][1] if column in OWN else lambda values: values
    pairs = np.array([[turn(study.value(column, text, one, budget))
                       for one in (claim.policy, claim.without)] for text in own])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(pairs[:, 0] / pairs[:, 1]) if own else np.array([])


def finite(logs):
    """Texts on which both are 0 do not count."""
    return logs[np.isfinite(logs)]


def cell(logs, clear):
    """Geometric mean with its interval; `clear`: also after correction for many comparisons."""
    logs = finite(logs)
    if not logs.size:
        return "-"
    mean, (low, high) = statistics.over_traces(logs)
    star = "" if not statistics.effect(logs) else "**" if clear else "*"
    return f"{np.exp(mean):.2f} [{np.exp(low):.2f}, {np.exp(high):.2f}]{star}"


GROUPS = {"texts of about 700 tokens": plan.SHORT, "texts of about 2300 tokens": plan.LONG}


def comparisons(study, column):
    """{(claim, budget, texts): (logarithms, is it clear after Holm's correction)} of all that are
    made by one measure, the loss of the model or another."""
    found = {}
    for texts in GROUPS.values():
        for claim in CLAIMS:
            for budget in BUDGETS:
                logs = finite(ratios(study, claim, claim.own if column is None else column,
                                     budget, texts))
                if logs.size > 1:
                    found[claim, budget, texts] = logs
    clear = statistics.holm([statistics.chance(logs) for logs in found.values()])
    return {key: (logs, passed) for (key, logs), passed in zip(found.items(), clear)}


def said(study):
    """How many comparisons by the loss there are, and what that means: a sentence each."""
    found = list(comparisons(study, "kl").values())
    apart = sum(not low <= 0 <= high for low, high in
                (statistics.over_traces(logs)[1] for logs, _ in found))
    effects = sum(bool(statistics.effect(logs)) for logs, _ in found)
    clear = sum(bool(passed and statistics.effect(logs)) for logs, passed in found)
    chance = (1 - statistics.LEVEL) * len(found)
    return (f"By the loss there are {len(found)} comparisons. If nothing made a difference, about "
            f"{chance:.0f} of their intervals would be without 1 all the same. {apart} are, "
            f"{effects} of them around an effect of at least {statistics.SMALLEST_EFFECT:.0%}. "
            f"{clear} are left after Holm's correction, with which not even one is expected by chance. "
            "A single `*` is therefore a hint. A row of them in one direction, over budgets and over "
            "both lengths, is more than chance makes.").replace("%", " %")


def rows(study, claim, texts, found):
    """Rows of one claim: the paper's measure, the stream error, the loss."""
    for column in (claim.own, *COMMON):
        many = found[None if column == claim.own else column]
        cells = [cell(*many.get((claim, budget, texts), (np.array([]), False)))
                 for budget in BUDGETS]
        if set(cells) == {"-"}:
            return
        name = OWN[column][0] if column in OWN else COMMON[column]
        yield [claim.part if column == claim.own else "", name, *cells]


WORDS = {-1: "helps", 1: "harms", 0: "level"}


def verdict(study, claim, texts):
    """What the loss says at SHORT_BUDGETS, in words (statistics.effect)."""
    effects = [statistics.effect(finite(ratios(study, claim, "kl", budget, texts)))
               for budget in SHORT_BUDGETS]
    parts = []
    for effect, word in WORDS.items():
        at = [f"{budget:g}" for budget, one in zip(SHORT_BUDGETS, effects) if one == effect]
        if len(at) == len(SHORT_BUDGETS):
            return word
        if at:
            parts.append(f"{word} at {', '.join(at)}")
    return "; ".join(parts) or "undecided"


def brief(study, texts):
    """A row per claim: ratios of the three measures at SHORT_BUDGETS, and the verdict."""
    for claim in CLAIMS:
        columns = []
        for column in (claim.own, *COMMON):
            means = [ratios(study, claim, column, budget, texts) for budget in SHORT_BUDGETS]
            columns.append(", ".join(f"{np.exp(m[np.isfinite(m)].mean()):.2f}" if
                                     np.isfinite(m).any() else "-" for m in means))
        if columns[-1].strip("-, "):
            yield [claim.paper, claim.part, *columns, verdict(study, claim, texts)]


def page(study):
    """The whole page, in Markdown."""
    parts = [HEAD, said(study)]
    found = {column: comparisons(study, column) for column in (None, *COMMON)}
    for title, texts in GROUPS.items():
        for paper in dict.fromkeys(claim.paper for claim in CLAIMS):
            listed = [row for claim in CLAIMS if claim.paper == paper
                      for row in rows(study, claim, texts, found)]
            if listed:
                header = ["part", "measure", *(f"{budget:g}" for budget in BUDGETS)]
                parts.append(f"{paper}, {title}")
                parts.append("\n".join("| " + " | ".join(row) + " |" for row in
                                       [header, ["---"] * len(header), *listed]))
    return "\n\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="claims.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--brief", action="store_true",
                        help="a row per claim, with the verdict of the loss")
    options = parser.parse_args()
    study = runs.Study(options.folder)
    if options.brief:
        for row in brief(study, plan.SHORT):
            print("| " + " | ".join(row) + " |")
        return
    print(page(study), end="")


if __name__ == "__main__":
    main()
