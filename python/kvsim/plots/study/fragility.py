"""DefensiveKV's aggregation over many texts, with heads competing and without, pooled and not:

    python -m kvsim.plots.study.fragility build/reproduction/*.aggregation.nc -o docs/reproduction/fragility.csv

takes what `scripts/reproduce.sh TRACE...` replayed: one results file per text, all steps. A row per
text, form, choice and budget.
"""

import argparse
import csv
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import xarray

from .. import statistics
from . import plan, runs

COMPETING, POOLED = ",allocate=ada,ada_floor=0", ",smooth=avg"
LARGEST = "importance,aggregate=max,group=max"
# Who chooses -> the record, with equal budgets and without pooling.
CHOICES = {
    "one query": "importance,aggregate=single",
    "mean": "importance",
    "maximum": LARGEST,
    "defensive step": "importance,indicator=attention,weight=projected-l1,aggregate=max,group=max,"
                      "prior=head-mean",
}
FORMS = {"heads compete": COMPETING, "equal budgets": "", "heads compete, pooled": COMPETING + POOLED,
         "equal budgets, pooled": POOLED}
BUDGETS = (0.5, 0.35, 0.2, 0.1)
HEADER = ("text", "prompt_tokens", "seed", "form", "choice", "budget", "steps", "stream_error",
          "worst", "outliers")
TEXTS = plan.UNSEEN   # those of the table


def parts_of(record):
    """A record as a set of its settings: their order is of no meaning."""
    return frozenset(record.split(","))


def rows(files):
    """A row per text, form, choice and budget of results of scripts/reproduce.sh."""
    for path in files:
        text = re.match(r"(.+)_(\d+)_(\d+)\.", path.name)
        if not text:
            raise SystemExit(f"{path}: expected KIND_TOKENS_SEED.GROUP.nc")
        with xarray.open_dataset(path, engine="h5netcdf") as found:
            names = {parts_of(str(one)): str(one) for one in found.policy.values}
            for form, change in FORMS.items():
                for choice, record in CHOICES.items():
                    name = names.get(parts_of(record + change))
                    if name is None:
                        continue
                    for budget in BUDGETS:
                        own = found.sel(policy=name, budget=budget)
                        retained = own.retained_importance.values
                        steps = int(np.isfinite(own.stream_error.values).sum())
                        yield [*text.groups(), form, choice, budget, steps,
                               f"{float(own.stream_error_rms):.5g}", f"{retained.min():.5g}",
                               f"{(retained < 0.5).mean():.5g}"]


class Table:
    """fragility.csv: {(form, choice, budget): {text: row}}."""

    def __init__(self, path):
        self.cells = defaultdict(dict)
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                text = plan.TextPlan(row["text"], int(row["prompt_tokens"]), int(row["seed"]))
                if text in TEXTS:
                    self.cells[row["form"], row["choice"], float(row["budget"])][text] = row

    def pairs(self, form, budget, column, choice="defensive step"):
        """What the mean and another choice have, by text: two arrays."""
        own, mean = (self.cells[form, one, budget] for one in (choice, "mean"))
        texts = [text for text in mean if text in own]
        return (np.array([float(cell[text][column]) for text in texts]) for cell in (mean, own))

    def means(self, form, budget, column, factor=1, digits=3):
        """Means over texts: of the mean's choice, the maximum's and the defensive step's."""
        found = []
        for choice in ("mean", "maximum", "defensive step"):
            values = [float(row[column]) for row in self.cells[form, choice, budget].values()]
            found.append(f"{factor * np.mean(values):.{digits}f}" if values else "-")
        return ", ".join(found)


def table(docs):
    """Header and rows: mean, maximum and defensive step over the texts."""
    own = Table(docs / "reproduction/fragility.csv")
    made = []
    for budget in BUDGETS:
        for form in FORMS:
            mean, step = own.pairs(form, budget, "stream_error")
            if mean.size < 2:
                continue
            logs = np.log(step / mean)
            ratio, ends = statistics.over_traces(logs)
            lost, gone = own.pairs(form, budget, "outliers")
            change, reach = statistics.over_traces(100 * (gone - lost))
            star = "*" if statistics.effect(logs) else ""
            apart = "*" if reach[0] > 0 or reach[1] < 0 else ""
            made.append([f"{budget:g}", form, own.means(form, budget, "stream_error"),
                         "{:.2f} [{:.2f}, {:.2f}]".format(*np.exp([ratio, *ends])) + star,
                         own.means(form, budget, "outliers", 100, 1),
                         f"{change:+.1f} [{reach[0]:+.1f}, {reach[1]:+.1f}]{apart}".replace("-", "−"),
                         own.means(form, budget, "worst")])
    return (["budget", "selection", "stream error", "defensive / mean", "below 0.5, %",
             "defensive − mean", "worst"], made)


def main():
    parser = argparse.ArgumentParser(prog="fragility.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="RESULTS.nc")
    parser.add_argument("-o", "--out", required=True, type=Path, metavar="TABLE.csv")
    options = parser.parse_args()
    runs.write(options.out, [HEADER, *rows(options.files)])


if __name__ == "__main__":
    main()
