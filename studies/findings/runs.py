"""The runs of the study: results of `kvsim replay` and losses of kvsim closed-loop, per text.

A folder holds a folder for each study of plan.STUDIES that was run, as `kvsim study` made it.

    studies/make.sh runs DIR STUDY -o TABLE.csv
"""

import argparse
import csv
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray

from kvsim.plain import csv_cell
from kvsim.studies.folder import COLUMNS, Folder, shares_held
from . import plan

WORST_SHARE = 0.05   # of the steps: the loss's own worst case
# Column of the table of losses -> what it is; `kl_worst` is over ceil(5 % of the steps) steps.
LOSSES = {
    "kl": "KL divergence from the full cache, mean over steps, nats",
    "kl_worst": "the same over the worst 5 % of the steps",
    "top1": "share of steps whose most likely token is the full cache's",
    "nll": "negative log-likelihood of the text's own next token, less that of the full cache, nats",
}
REPLAYED = {
    "stream_error": "stream error, rms over steps",
    "output_error": "relative error of a layer's output, mean over layers and steps",
    "retained_mean": "retained importance, mean over layers and steps",
    "retained_worst": "retained importance at the worst step of the worst layer",
    "outliers": "share of (layer, step) pairs with retained importance below 0.5",
    "entries": "prompt entries kept, share",
    **{name: COLUMNS[name] for name in ("bytes", "peak")},
}


def write(path, rows):
    """A table, header first, as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(map(csv_cell, row) for row in rows)
    print(path)


@dataclass
class Run:
    """One group of policies on one text: `table` maps a column to [policy, budget]."""

    text: plan.TextPlan
    group: str
    policies: list
    budgets: list
    table: dict


def worst(kl):
    """Mean of the largest 5 % of the steps (at least one), along the last axis."""
    count = max(1, int(np.ceil(WORST_SHARE * kl.shape[-1])))
    return np.sort(kl, axis=-1)[..., -count:].mean(-1)


def parts(folder, text, study=None):
    """The finished parts of a text, of its own study or another: files of results and of losses."""
    study = Folder(folder / (study or plan.study_of(text)))
    return [one for one in study.parts(text.name) if one.finished]


def read(part, text, study):
    """The run of a text and part of a study."""
    with xarray.open_dataset(part.loop, engine="h5netcdf") as loop, \
            xarray.open_dataset(part.results, engine="h5netcdf") as every:
        policies = [str(one) for one in loop.policy.values]
        replay = every.sel(policy=policies)
        kl = loop.kl_divergence.values
        retained = replay.retained_importance.values
        kept = replay.kept.sum(["layer", "kv_head"])
        if "kept_query" in replay:
            kept = kept.where(kept > 0, replay.kept_query.sum(["layer", "head"]) *
                              replay.sizes["kv_head"] / replay.sizes["head"])
        entries = replay.sizes["layer"] * replay.sizes["kv_head"] * int(replay.prompt_len)
        held, peak = shares_held(replay, int(replay.prompt_len), replay.sizes["step"])
        table = {
            "kl": kl.mean(-1), "kl_worst": worst(kl), "top1": loop.top1_agreement_mean.values,
            "nll": loop.nll_difference_mean.values,
            "stream_error": replay.stream_error_rms.values,
            "output_error": np.nanmean(replay.output_error.values, axis=(2, 3)),
            "retained_mean": retained.mean((2, 3)), "retained_worst": retained.min((2, 3)),
            "outliers": (retained < 0.5).mean((2, 3)), "entries": kept.values / entries,
            "bytes": held, "peak": peak,
        }
        return Run(text, plan.group_of(text, policies[0], study), policies,
                   [float(one) for one in loop.budget.values], table)


def of_table(path):
    """The runs that a table of losses holds, as Study.rows() wrote it."""
    found = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            text = plan.TextPlan(row["text"], int(row["prompt_tokens"]), int(row["seed"]))
            found.setdefault((text, row["group"]), []).append(row)
    for (text, group), rows in found.items():
        policies = list(dict.fromkeys(row["policy"] for row in rows))
        budgets = list(dict.fromkeys(float(row["budget"]) for row in rows))
        table = {column: np.full((len(policies), len(budgets)), np.nan)
                 for column in (*LOSSES, *REPLAYED)}
        for row in rows:
            at = policies.index(row["policy"]), budgets.index(float(row["budget"]))
            for column, values in table.items():
                values[at] = float(row.get(column) or np.nan)
        yield Run(text, group, policies, budgets, table)


class Study:
    """All runs of folders, or of tables of losses that were made of them; says what is missing."""

    def __init__(self, *sources, texts=plan.TEXTS, study=None):
        self.runs = []
        for one in sources:
            self.runs += of_table(one) if one.is_file() else (
                read(part, text, name) for text in texts
                for name in ([study] if study else plan.studies_of(text))
                for part in parts(one, text, name))
        self.missing = [text.stem for text in texts if text not in {run.text for run in self.runs}]
        self.places = {(run.text, policy, budget): (run, (p, b)) for run in reversed(self.runs)
                       for p, policy in enumerate(run.policies)
                       for b, budget in enumerate(run.budgets)}
        self.budgets = {}   # {(text, policy): those at which it has run}
        for text, policy, budget in self.places:
            self.budgets.setdefault((text, policy), []).append(budget)
        if not self.runs:
            sys.exit(f"{', '.join(map(str, sources))}: nothing has been run")

    def texts(self, policies, budgets, texts):
        """Those of `texts` in which every one of the policies has run at every budget."""
        return [text for text in texts if all(
            not np.isnan(self.value("kl", text, policy, budget))
            for policy in policies for budget in budgets)]

    def value(self, column, text, policy, budget):
        """One number; NaN where it has not been run. plan.FLOOR has losses alone."""
        if policy == plan.FLOOR:
            return np.nanmin([self.value(column, text, one, budget) for one in plan.FLOOR_OF]) \
                if self.has_floor(text, budget) and column == "kl" else np.nan
        run, place = self.places.get((text, policy, budget), (None, None))
        return run.table[column][place] if run else np.nan

    def has_floor(self, text, budget):
        """Whether the rules of hindsight have run on a text that have run on every one."""
        return all((text, one, budget) in self.places for one in plan.FLOOR_LEAST)

    def relative(self, policy, budget, texts, base="snapkv", column="kl"):
        """Logarithms of the losses relative to those of `base`, by text."""
        return np.log([self.value(column, text, policy, budget) /
                       self.value(column, text, base, budget) for text in texts])

    def rows(self):
        """Header and rows of the whole table, a row per text, policy and budget."""
        header = ["text", "prompt_tokens", "seed", "group", "policy", "budget", *LOSSES, *REPLAYED]
        rows = [[run.text.kind, run.text.prompt_tokens, run.text.seed, run.group, policy, budget,
                 *(f"{run.table[column][p, b]:.5g}" for column in (*LOSSES, *REPLAYED))]
                for run in self.runs for p, policy in enumerate(run.policies)
                for b, budget in enumerate(run.budgets) if not np.isnan(run.table["kl"][p, b])]
        return [header, *rows]


def of_claims(*given):
    """What studies/claims.md is made of: a folder of runs, or the tables in studies/losses/."""
    return Study(*given, texts=plan.TEXTS + plan.LONGEST)


def tables(studies):
    """The tables of losses of studies/claims.md that are there."""
    beside = (name for name, study in plan.STUDIES.items() if study.beside)
    found = (studies / f"losses/{name}.csv" for name in ("losses", "longest", *beside, "floor"))
    return [one for one in found if one.is_file()]


def main():
    parser = argparse.ArgumentParser(prog="runs.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("study", metavar="STUDY", choices=plan.STUDIES)
    parser.add_argument("-o", "--out", required=True, type=Path, metavar="TABLE.csv")
    options = parser.parse_args()
    write(options.out, Study(options.folder, texts=plan.STUDIES[options.study].texts,
                             study=options.study).rows())


if __name__ == "__main__":
    main()
