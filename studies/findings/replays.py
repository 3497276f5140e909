"""What replays alone say of the papers' parts, over many texts:

    studies/make.sh replays build/reproduction/*.nc -o studies/reproduction/replays.csv

takes what `studies/reproduce.sh TRACE...` replayed: one results file per text and group of policies, all
steps. A row per text, policy and budget. The tables of studies/reproduction/ are made of that file.
"""

import argparse
import csv
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import xarray

from kvsim.plots import statistics
from . import plan, runs
from .effects import effect

HEADER = ("text", "prompt_tokens", "seed", "group", "layers", "steps", "policy", "budget")
MERGED = ("attention_sag", "attention_shift", "log_mass_defect", "dropped_attention")
MEASURES = ("stream_error", "output_error", "retained_mean", "worst_step", "worst", "outliers", *MERGED)
GROUPS = ("aggregation", "windows", "methods", "smoothing", "merges", "selection", "periodic")


def parts_of(record):
    """A record as a set of its settings: their order is of no meaning."""
    return frozenset(record.split(","))


def measured(own):
    """The numbers of one policy and budget, MEASURES; empty where the results have none."""
    retained = own.retained_importance.values          # [layer, step]
    found = [own.stream_error_rms, np.nanmean(own.output_error), retained.mean(),
             retained.mean(0).min(), retained.min(), (retained < 0.5).mean()]
    return [f"{float(one):.5g}" for one in found] + [
        f"{float(own[name].mean()):.5g}" if name in own and np.isfinite(own[name]).any() else ""
        for name in MERGED]


def rows(files):
    """A row per text, policy and budget of results of studies/reproduce.sh."""
    for path in files:
        text = re.match(r"(.+)_(\d+)_(\d+)\.(.+)\.nc$", path.name)
        if not text:
            raise SystemExit(f"{path}: expected KIND_TOKENS_SEED.GROUP.nc")
        if text[4] not in GROUPS:
            continue
        with xarray.open_dataset(path, engine="h5netcdf") as found:
            found.load()
            steps = int(np.isfinite(found.stream_error.values[0, 0]).sum())
            for policy in found.policy.values:
                for budget in found.budget.values:
                    yield [*text.groups(), found.sizes["layer"], steps, str(policy), f"{budget:g}",
                           *measured(found.sel(policy=policy, budget=budget))]


class Table:
    """replays.csv: of the texts given, {(settings of the policy, budget): {text: row}} of a group."""

    def __init__(self, studies, group, texts):
        self.cells = defaultdict(dict)
        with (studies / "reproduction/replays.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                text = plan.TextPlan(row["text"], int(row["prompt_tokens"]), int(row["seed"]))
                if row["group"] == group and text in texts:
                    self.cells[parts_of(row["policy"]), float(row["budget"])][text] = row

    def values(self, policy, budget, column, texts=None):
        """By text, those of `texts`, or all that have it."""
        own = self.cells[parts_of(policy), budget]
        return np.array([float(own[text][column]) for text in (texts or own) if own[text][column]])

    def pair(self, policy, other, budget, column):
        """What two policies have on the texts of both."""
        both = [self.cells[parts_of(one), budget] for one in (policy, other)]
        texts = [text for text in both[0] if text in both[1]]
        return tuple(self.values(one, budget, column, texts) if texts else np.array([])
                     for one in (policy, other))


def number(value, digits=3):
    return f"{value:.{digits}f}".replace("-", "−")


def mean(values, digits=3, star=""):
    """Mean over texts with its 95 % interval."""
    if not values.size:
        return "-"
    middle, (low, high) = statistics.over_traces(values)
    if values.size < 2:
        return number(middle, digits) + star
    return f"{number(middle, digits)} [{number(low, digits)}, {number(high, digits)}]{star}"


def ratio(logs, digits=2):
    """Geometric mean with its interval; a star marks an effect (effects.py)."""
    if not logs.size:
        return "-"
    middle, ends = statistics.over_traces(logs)
    low, high = np.exp(ends)
    return f"{np.exp(middle):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]" + (
        "*" if effect(logs) else "")


def apart(own, base):
    """A star where the interval of the difference, text by text, is without 0."""
    if own.size < 2 or own.size != base.size or (own == base).all():
        return ""
    low, high = statistics.over_traces(own - base)[1]
    return "*" if low > 0 or high < 0 else ""


# DefensiveKV's aggregation. Who chooses -> the record, with equal budgets and without pooling.
COMPETING, POOLED = ",allocate=ada,ada_floor=0", ",smooth=avg"
LARGEST = "importance,aggregate=max,group=max"
AFTER = "importance,indicator=attention,weight=projected-l1"   # the norm after the prior
AFTER_LARGEST = f"{AFTER},aggregate=max,group=max"
CHOICES = {"mean": "importance", "maximum": LARGEST,
           "defensive step": f"{AFTER_LARGEST},prior=head-mean"}
FORMS = {"heads compete": COMPETING, "equal budgets": "", "heads compete, pooled": COMPETING + POOLED,
         "equal budgets, pooled": POOLED}
BUDGETS = (0.5, 0.35, 0.2, 0.1)
HINDSIGHT = "oracle-mean"


ROWS = {
    "mean over the window (`importance`)": "importance",
    "one query of the window": "importance,aggregate=single",
    "max over queries and heads": LARGEST,
    "max, prior head-mean": f"{LARGEST},prior=head-mean",
    "max, prior head-mean, `tie=recent`": f"{LARGEST},prior=head-mean,tie=recent",
    "max, after": AFTER_LARGEST,
    "max, prior 1e-5, after": f"{AFTER_LARGEST},prior=constant,prior_value=0.00001",
    "max, prior 1e-4, after": f"{AFTER_LARGEST},prior=constant",
    "max, prior 1e-3, after": f"{AFTER_LARGEST},prior=constant,prior_value=0.001",
    "max, prior head-mean, after": f"{AFTER_LARGEST},prior=head-mean",
    "hindsight (`oracle-mean`)": HINDSIGHT,
}
# Column -> its title, factor and digits.
SHARES = {"worst": ("worst layer and step", 1, 2), "worst_step": ("worst step, mean over layers", 1, 2),
          "retained_mean": ("mean", 1, 3), "outliers": ("below 0.5, %", 100, 1),
          "stream_error": ("stream error", 1, 3)}


def shares(found, listed, base, budget, columns):
    """Header and rows: the shares kept by policies, means over texts; a star: differs from `base`,
    text by text."""
    made = []
    for name, policy in listed.items():
        cells = [name]
        for column in columns:
            _, factor, digits = SHARES[column]
            own, against = found.pair(policy, base, budget, column)
            cells.append(mean(factor * own, digits, apart(own, against)))
        made.append(cells)
    return ["who chooses", *(SHARES[column][0] for column in columns)], made


def aggregation(studies, form):
    """DefensiveKV's Table 1 at budget 0.5, heads competing or not. Hindsight has equal budgets."""
    listed = {name: record + ("" if record == HINDSIGHT else form) for name, record in ROWS.items()}
    return shares(Table(studies, "aggregation", plan.LONG), listed, "importance" + form, 0.5, SHARES)


METHODS = ("importance", "snapkv", "adakv", "criticalkv", "restkv", "defensivekv", "defensivekv:code",
           "layer-defensivekv", "layer-defensivekv:code", HINDSIGHT)


def methods(studies):
    """Whole methods by the papers' measure, budget 0.5."""
    listed = {f"`{one}`": one for one in METHODS}
    return shares(Table(studies, "methods", plan.LONG), listed, "importance", 0.5,
                  ("worst", "retained_mean", "outliers", "stream_error"))


WINDOWS = (8, 16, 32, 64, 128)
WINDOW_ROWS = {
    "mean, equal budgets": ("importance", ""), "mean, heads compete": ("importance", COMPETING),
    "max and prior, equal budgets": ("importance", ",aggregate=max,group=max,prior=head-mean"),
    "defensive step, heads compete": (AFTER, f",aggregate=max,group=max,prior=head-mean{COMPETING}"),
}


def windows(studies):
    """Share of outliers by the number of queries, budget 0.5; a star: against 32 queries."""
    found = Table(studies, "windows", plan.LONG)
    made = []
    for name, (record, change) in WINDOW_ROWS.items():
        policies = {m: f"{record}{change}" + (f",window={m}" if m != 32 else "") for m in WINDOWS}
        made.append([name, *(mean(100 * own, 1, apart(own, base)) for own, base in (
            found.pair(policies[m], policies[32], 0.5, "outliers") for m in WINDOWS))])
    return ["queries", *map(str, WINDOWS)], made


# ReST-KV's smoothing; `restkv` has ema and aws.
SMOOTHING = (
    "restkv,aggregate=mean,smooth=none", "restkv,aggregate=ema-inverse,smooth=none",
    "restkv,smooth=none", "restkv,aggregate=last,smooth=none", "restkv,aggregate=mean",
    "restkv,aggregate=ema-inverse", "restkv,smooth=avg", "restkv,smooth=max",
    "restkv,aggregate=last",
    *(f"restkv,ema_alpha={alpha:g}" for alpha in (0.1, 0.2, 0.5, 0.7, 0.9)),
    *(f"restkv,aws_beta={beta}" for beta in (5, 20, 100, 500)),
    "restkv,indicator=attention", "restkv,indicator=attention-value", "snapkv",
)


def smoothing(studies):
    """Stream error relative to `restkv`, geometric means over texts."""
    found = Table(studies, "smoothing", plan.SHORT)
    return (["policy", *(f"{budget:g}" for budget in reversed(BUDGETS))],
            [[f"`{policy}`", *(ratio(np.log(own / base)) for own, base in (
                found.pair(policy, "restkv", budget, "stream_error")
                for budget in reversed(BUDGETS)))] for policy in SMOOTHING])


# KeepKV: what merging does to attention, budget 0.3; a star against convex merging.
MERGES = {
    "`convex`": "convex", "`d2o`": "d2o", "`cam`": "cam", "`keepkv` (Eq. 7)": "keepkv",
    "the same, exact scores": "keepkv,score_estimate=last",
    "the same, a cache per query head": "keepkv,granularity=query",
    "both": "keepkv,granularity=query,score_estimate=last",
    "`keepkv:code`": "keepkv:code", "`keepkv:bias` (kvsim)": "keepkv:bias",
}


def merges(studies):
    found = Table(studies, "merges", plan.LONG)
    made = []
    for name, policy in MERGES.items():
        own, base = found.pair(policy, "convex", 0.3, "output_error")
        made.append([name, mean(own, 3, apart(own, base)), *(
            mean(found.values(policy, 0.3, column), 2 if column == "log_mass_defect" else 3)
            for column in MERGED)])
    return ["policy", "output error", "attention sag", "shift", "log-mass defect, nats",
            "dropped attention"], made


SELECTION_BUDGETS = (0.1, 0.3, 0.7)


def selection(studies):
    """The same entries evicted or merged: output error; a star against dropping."""
    found = Table(studies, "selection", plan.LONG)
    made = []
    for base in ("snapkv", "restkv"):
        for kind in ("", "convex", "d2o", "value-fold", "keepkv", "keepkv-bias"):
            pairs = [found.pair(base + f",merge={kind}" * bool(kind), base, budget, "output_error")
                     for budget in SELECTION_BUDGETS]
            made.append([f"`{base}`" if not kind else "", f"`{kind}`" if kind else "dropped",
                         *(mean(own, 3, apart(own, dropped)) for own, dropped in pairs)])
    return ["selection", "what becomes of the evicted", *map(str, SELECTION_BUDGETS)], made


def main():
    parser = argparse.ArgumentParser(prog="replays.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="RESULTS.nc")
    parser.add_argument("-o", "--out", required=True, type=Path, metavar="TABLE.csv")
    options = parser.parse_args()
    runs.write(options.out, [HEADER + MEASURES, *rows(options.files)])


if __name__ == "__main__":
    main()
