"""Each claim of the papers by three measures: studies/make.sh claims DIR|TABLE.csv...

DIR holds the runs that studies/losses.sh makes, or the tables studies/losses/*.csv of them. A claim
compares a policy with another: a baseline of the paper, or itself without the part that the claim is
about. Numbers of studies/claims.md, studies/losses/claims.csv and claims_bytes.csv, are made here.
Numbers are ratios of the paper's own measure (turned so that less is better), of the stream error
and of the model's loss: geometric means over texts with 95 % intervals. Below 1 the policy is
better. `*` marks an interval without 1 around a mean that is an effect (SMALLEST_EFFECT),
`**` one that is left after Holm's correction for all comparisons by the same measure.
"""

import argparse
import csv
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvsim import ranking
from kvsim.plots import statistics
from kvsim.studies.table import LEAST
from . import plan, runs
from .effects import SMALLEST_EFFECT, effect

# Measure of a paper -> its name in the table, and how it becomes a loss.
OWN = {
    "retained_mean": ("1 - retained importance, mean", lambda values: 1 - values),
    "retained_worst": ("1 - retained importance, worst", lambda values: 1 - values),
    "outliers": ("share of outliers", lambda values: values),
    "output_error": ("output error", lambda values: values),
}
COMMON = {"stream_error": "stream error", "kl": "loss"}
BUDGETS = (0.05, 0.1, 0.2, 0.35, 0.5)


@dataclass(frozen=True)
class Claim:
    """`policy` is to be better than `without`, by the paper's measure `own`; `part`: what the two
    differ in, empty where `without` is a baseline."""

    paper: str
    part: str
    policy: str
    without: str
    own: str = "retained_worst"


LAYER = "layer-defensivekv"


def against(paper, policies, baselines, own):
    """A paper's methods against its baselines."""
    return tuple(Claim(paper, "", policy, baseline, own)
                 for policy in policies for baseline in baselines)


def parts(paper, own, *listed):
    return tuple(Claim(paper, *one, own) for one in listed)


CLAIMS = (
    *against("DefensiveKV", (LAYER, f"{LAYER}:code", *plan.DEFENSIVE),
             ("streaming", "snapkv", "adakv", "cake", "criticalkv", *plan.HEADS), "retained_worst"),
    *parts("DefensiveKV", "retained_worst",
           ("the method without pooling against SnapKV", f"{LAYER},smooth=none", "snapkv"),
           ("maximum, not mean", LAYER, f"{LAYER},aggregate=mean,group=mean"),
           ("prior, with the maximum", LAYER, f"{LAYER},prior=none"),
           ("maximum and prior together", LAYER, f"{LAYER},aggregate=mean,group=mean,prior=none"),
           ("head's own mean as prior, not 1e-4", LAYER, f"{LAYER},prior=constant"),
           ("head's own mean as prior, not 1e-3", LAYER,
            f"{LAYER},prior=constant,prior_value=0.001"),
           ("layers compete, not the heads of a layer", LAYER, f"{LAYER},allocate=ada,ada_floor=0"),
           ("layers compete, not uniform budgets", LAYER, f"{LAYER},allocate=uniform"),
           ("smoothing", LAYER, f"{LAYER},smooth=none"),
           ("a window of 64, not 32", f"{LAYER},window=64", LAYER),
           ("a window of 32, not 16", LAYER, f"{LAYER},window=16"),
           ("a window of 32, not 8", LAYER, f"{LAYER},window=8"),
           ("joint allocation without the rest, on SnapKV", "snapkv,allocate=joint", "snapkv"),
           ("maximum alone, on plain importance", "importance,aggregate=max,group=max",
            "importance"),
           ("mean over the window, not one query", "importance", "importance,aggregate=single"),
           ("on AdaKV (Table 7)", "adakv,aggregate=max,group=max,prior=head-mean", "adakv"),
           ("on CriticalKV (Table 7)", "criticalkv:ada,aggregate=max,group=max,prior=head-mean",
            "criticalkv:ada")),
    *against("ReST-KV", ("restkv",), ("streaming", "h2o", "tova", "snapkv", "cake"),
             "output_error"),
    *against("ReST-KV", ("restkv:code",), ("snapkv:official",), "output_error"),
    *parts("ReST-KV", "output_error",
           ("output change, not attention (Table 3)", "restkv", "restkv,indicator=attention"),
           ("output change, not attention times value norm (Table 12)", "restkv",
            "restkv,indicator=attention-value"),
           ("moving average over time, not mean (Table 3)", "restkv", "restkv,aggregate=mean"),
           ("adaptive smoothing, not none (Table 3)", "restkv", "restkv,smooth=none"),
           ("adaptive smoothing, not a fixed window (Table 13)", "restkv", "restkv,smooth=avg"),
           ("all three against none (Table 3)", "restkv",
            "restkv,indicator=attention,aggregate=mean,smooth=none"),
           ("beta 100, at which the window moves, not 2000", "restkv,aws_beta=100", "restkv"),
           ("the window's shift as resolved, not as Eq. 12 prints it", "restkv",
            "restkv,smooth=aws-printed"),
           ("with heads' budgets of AdaKV, against itself", "restkv,allocate=ada", "restkv"),
           ("the same against AdaKV (Table 5)", "restkv,allocate=ada", "adakv"),
           ("with a pyramid of budgets, against itself", "restkv,allocate=pyramid", "restkv"),
           ("the same against PyramidKV (Table 4)", "restkv,allocate=pyramid", "pyramidkv")),
    *against("KeepKV", ("keepkv",), ("streaming", "h2o", "pyramidinfer", "cam", "d2o"),
             "output_error"),
    *against("KeepKV", ("keepkv:code",), ("h2o:official", "d2o:code", "cam", "streaming", "h2o",
                                          "pyramidinfer", "d2o"), "output_error"),
    *against("KeepKV", ("h2o:official,merge=keepkv-code",), ("h2o:official",), "output_error"),
    *against("KeepKV", ("pyramidinfer,merge=keepkv-code",), ("pyramidinfer",), "output_error"),
    *parts("KeepKV", "output_error",
           ("Eq. 7 against convex merging", "keepkv", "convex"),
           ("its code against convex merging, with three times the sets", "keepkv:code", "convex"),
           ("its code against dropping the same entries", "keepkv:code", "keepkv:code,merge=drop"),
           ("convex merging against dropping the same entries", "convex", "convex,merge=drop"),
           ("mass kept by a bias against convex merging", "keepkv:bias", "convex"),
           ("mass kept by a bias against dropping the same entries", "keepkv:bias",
            "convex,merge=drop"),
           ("convex merging against dropping, on SnapKV", "snapkv,merge=convex", "snapkv"),
           ("D2O's merging against dropping, on SnapKV", "snapkv,merge=d2o", "snapkv"),
           ("values of what is dropped folded in, on SnapKV", "snapkv,merge=value-fold", "snapkv"),
           ("merging by bias against dropping, on SnapKV", "snapkv,merge=keepkv-bias", "snapkv")),
)
PAPERS = tuple(dict.fromkeys(claim.paper for claim in CLAIMS))


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


EFFECTS = {-1: "less", 1: "more", 0: "level", None: "undecided"}


# Prompts of about so many tokens: texts and budgets.
LENGTHS = {"700": plan.SHORT, "2300": plan.LONG, "8000": plan.LONGEST}
BUDGETS_OF = {plan.SHORT: BUDGETS, plan.LONG: (*plan.SCARCE_BUDGETS, *BUDGETS),
              plan.LONGEST: plan.LONGEST_BUDGETS}


def comparisons(study, column):
    """{(claim, budget, texts): (logarithms, is it clear after Holm's correction)} of all that are
    made by one measure, the loss of the model or another; None: the papers' own."""
    found = {}
    for texts, budgets in BUDGETS_OF.items():
        for claim in CLAIMS:
            for budget in budgets:
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
    effects = sum(bool(effect(logs)) for logs, _ in found)
    clear = sum(bool(passed and effect(logs)) for logs, passed in found)
    chance = (1 - statistics.LEVEL) * len(found)
    return (f"By the loss there are {len(found)} comparisons. If nothing made a difference, about "
            f"{chance:.0f} of their intervals would be without 1 all the same. {apart} are, "
            f"{effects} of them around an effect of at least {SMALLEST_EFFECT:.0%}. "
            f"{clear} are left after Holm's correction, with which not even one is expected by chance. "
            "A single `*` is therefore a hint. A row of them in one direction over budgets and lengths "
            "says more, though budgets share their texts.").replace("%", " %")


def sets(policy, specification):
    """Who owns a kept set, and when it is chosen: what docs/presets.md says of the preset, and the
    record of its own changes."""
    preset = policy.split(",")[0]
    row = re.search(rf"^\| `{re.escape(preset)}` \| (`\w+=.*?) \|", specification, flags=re.M)
    cells = (row[1] if row else "") + policy
    return ("query head" if "granularity=query" in cells else "KV head") + (
        ", each step" if "schedule=decode" in cells else "")


UNEVEN = 0.1   # sides whose kept entries differ by more are marked


def uneven(study, claim, budget, texts, column="entries"):
    """A mark where one side keeps more of the prompt than the other, whatever the budget asked for; with
    `bytes` or `peak` as the column, where it holds more of them."""
    shares = [[study.value(column, text, one, budget) for text in texts]
              for one in (claim.policy, claim.without)]
    kept = np.nanmean(shares, axis=1) if np.isfinite(shares).any(axis=1).all() else np.ones(2)
    return "‡" if abs(np.log(kept[0] / kept[1])) > np.log1p(UNEVEN) else ""


SHARES = (0.1, 0.2, 0.35, 0.5, 0.7)   # of the full cache's bytes


def points_of(study, text, policy, held):
    """[(share of the bytes that is held, loss)] of a policy at its own budgets."""
    points = np.array([[study.value(column, text, policy, budget) for column in (held, "kl")]
                       for budget in study.budgets.get((text, policy), ())]).reshape(-1, 2)
    return [(share, max(loss, LEAST)) for share, loss in points[np.isfinite(points).all(axis=1)]]


def at_same_bytes(study, specification):
    """{(claim, tokens, held): {share: logarithms of the ratios by text}} of the methods that hold other
    bytes than a baseline at the same budget. `held`: `bytes` of the prompt, or `peak` where a side also
    evicts later entries. A share counts where every text has both sides."""
    found = {}
    for claim in (one for one in CLAIMS if not one.part):
        later = any("each step" in sets(one, specification) for one in (claim.policy, claim.without))
        held = "peak" if later else "bytes"
        for length, texts in LENGTHS.items():
            own = [text for text in texts
                   if all((text, one) in study.budgets for one in (claim.policy, claim.without))]
            if not any(uneven(study, claim, budget, own, held) for budget in BUDGETS_OF[texts]):
                continue
            sides = [points_of(study, text, one, held) for text in own
                     for one in (claim.policy, claim.without)]
            pairs = {share: ranking.at_shares(sides, [share] * len(sides), "log").reshape(-1, 2)
                     for share in SHARES}
            found[claim, length, held] = {share: np.log(both[:, 0] / both[:, 1])
                                          for share, both in pairs.items() if np.isfinite(both).all()}
    return found


def same_bytes(study, specification):
    """Header and rows of studies/losses/claims_bytes.csv."""
    yield ["paper", "policy", "without", "prompt_tokens", "bytes", "share", "ratio", "low", "high", "effect"]
    for (claim, length, held), logs in at_same_bytes(study, specification).items():
        for share, ratios_there in logs.items():
            own = finite(ratios_there)
            if own.size:
                mean, (low, high) = statistics.over_traces(own)
                yield [claim.paper, claim.policy, claim.without, LENGTHS[length][0].prompt_tokens,
                       {"bytes": "prompt"}.get(held, held), f"{share:g}",
                       *(f"{np.exp(one):.4g}" for one in (mean, low, high)), EFFECTS[effect(own)]]


def tally(study, paper):
    """A sentence: how often the loss tells a paper's methods from its baselines."""
    counts = {policy: [] for policy in dict.fromkeys(
        claim.policy for claim in CLAIMS if claim.paper == paper and not claim.part)}
    for (claim, _, _), (logs, _) in comparisons(study, "kl").items():
        if claim.paper == paper and not claim.part:
            counts[claim.policy].append(effect(logs))
    return " ".join(
        f"`{policy}` against its baselines: {len(own)} comparisons by the loss, "
        f"{own.count(-1)} less, {own.count(1)} more, {own.count(0)} level, "
        f"{own.count(None)} undecided." for policy, own in counts.items() if own)


def every(study):
    """Header and rows of studies/losses/claims.csv: every comparison by every measure."""
    yield ["paper", "part", "policy", "without", "prompt_tokens", "measure", "budget", "ratio", "low",
           "high", "texts", "effect", "after_holm"]
    for column in (None, *COMMON):
        for (claim, budget, texts), (logs, clear) in comparisons(study, column).items():
            mean, (low, high) = statistics.over_traces(logs)
            yield [claim.paper, claim.part or "against a baseline", claim.policy, claim.without,
                   texts[0].prompt_tokens, column or claim.own, f"{budget:g}",
                   *(f"{np.exp(one):.4g}" for one in (mean, low, high)), logs.size,
                   EFFECTS[effect(logs)],
                   "yes" if clear else "no"]


def main():
    parser = argparse.ArgumentParser(prog="claims.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", metavar="DIR|TABLE.csv", type=Path, nargs="+")
    csv.writer(sys.stdout, lineterminator="\n").writerows(
        every(runs.of_claims(*parser.parse_args().given)))


if __name__ == "__main__":
    main()
