"""Tables too long to be read, as CSV files and maps: studies/make.sh long_tables [STUDIES]

Draws losses_presets.png and losses_merged.png of losses/losses_relative.csv, and
reproduction/fragility_lengths.png of reproduction/fragility_lengths.csv, which `pages` makes of the
tables of losses and replays, text by text, with reproduction/instructions_summary.csv.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from kvsim.plots import statistics
from . import instructions, losses, maps, output, plan, replays
from .effects import effect

HERE = Path(__file__).resolve().parents[1]
# Rows of the maps: what looks ahead first, then by what is lost.
PRESETS = (plan.FLOOR, "oracle-stream", "oracle-mean", plan.RECENT, "layer-defensivekv:code",
           "layer-defensivekv", "defensivekv:code", "defensivekv", "cake", "h2o", "criticalkv",
           "snapkv:official", "restkv", "restkv:code", "adakv", "tova", "streaming")
MERGED = ("keepkv:bias", "snapkv,merge=keepkv-bias", "snapkv,merge=value-fold", "kvmerger", "d2o",
          "snapkv,merge=d2o", "snapkv,merge=convex", "convex", "keepkv:code", "keepkv",
          "h2o:official", "tova:official", "streaming:official", "quest", "cam", "cam:expected")
LENGTHS = {700: plan.SHORT, 2300: plan.LONG, 8000: plan.LONGEST}
RELATIVE = ["prompt_tokens", "policy", "budget", "relative", "low", "high", "effect", "texts"]
FRAGILITY = ["prompt_tokens", "budget", "selection", "measure", "of", "mean", "low", "high", "told"]
SUMMARY = ["prompt_tokens", "order", "policy", "budget", "measure", "mean", "low", "high", "texts",
           "wrecked"]
STEP, OUTLIERS = "stream error", "layers and steps below 0.5, %"
CHANGED = "step against mean"


def relative(study):
    """Header and rows: losses relative to SnapKV's by length, policy and budget."""
    rows = [RELATIVE]
    for tokens, texts in LENGTHS.items():
        budgets = plan.LONGEST_BUDGETS if texts == plan.LONGEST else plan.BUDGETS
        for policy in (*PRESETS, *MERGED):
            for budget in budgets:
                own = study.texts((policy, losses.BASE), (budget,), texts)
                if len(own) < 2:
                    continue
                logs = study.relative(policy, budget, own)
                told = {-1: "less", 1: "more", 0: "level", None: "undecided"}[effect(logs)]
                rows.append([str(tokens), policy, f"{budget:g}",
                             *(f"{one:.4g}" for one in losses.geometric(logs)), told, str(len(own))])
    return rows


def fragility(studies):
    """Header and rows: mean, maximum and defensive step in every form, and the step against the mean:
    stream errors as a ratio, shares of layers and steps as a difference."""
    rows = [FRAGILITY]
    for tokens, texts in ((700, plan.UNSEEN), (2300, plan.LONG), (8000, plan.LONGEST)):
        found = replays.Table(studies, "aggregation", texts)
        for budget in replays.BUDGETS:
            for name, form in replays.FORMS.items():
                place = [str(tokens), f"{budget:g}", name]
                step, base = (replays.CHOICES[one] + form for one in ("defensive step", "mean"))
                for measure, column, factor in ((STEP, "stream_error", 1), (OUTLIERS, "outliers", 100),
                                                ("worst retained importance", "worst", 1)):
                    for of, record in replays.CHOICES.items():
                        values = factor * found.values(record + form, budget, column)
                        if values.size > 1:
                            rows.append([*place, measure, of, *interval(values), ""])
                error, of_mean = found.pair(step, base, budget, "stream_error")
                if error.size < 2:
                    continue
                logs = np.log(error / of_mean)
                rows.append([*place, STEP, CHANGED, *(f"{one:.4g}" for one in losses.geometric(logs)),
                             "yes" if effect(logs) else ""])
                gone, lost = found.pair(step, base, budget, "outliers")
                rows.append([*place, OUTLIERS, CHANGED, *interval(100 * (gone - lost)),
                             "yes" if replays.apart(gone, lost) else ""])
    return rows


def of_base(table, base):
    """Policy and budget of what was replayed of a policy and its constraints, but for debiasing's λ."""
    return sorted({(policy, budget) for measure, policy, budget in table.values
                   if measure == "stream_error" and "debias" not in policy
                   and (policy == base or policy.startswith(f"{base},"))})


def interval(values):
    """Mean over texts and its 95 % interval."""
    mean, (low, high) = statistics.over_traces(values)
    return [f"{one:.4g}" for one in (mean, low, high)]


def summary(tables):
    """Header and rows, of {length: {order: Table}} of the instructions: what a policy loses, what a
    constraint gains by the proxy, and what it changes of the loss; texts whose cache it wrecks."""
    rows = [SUMMARY]
    for length, of_length in tables.items():
        for order, table in of_length.items():
            for base in (instructions.RANDOM, *instructions.BASES):
                for policy, budget in of_base(table, base):
                    constrained = policy != base
                    bad = table.wrecked(policy, base, budget) if constrained else np.zeros(1, bool)
                    own = {one: table.get(one, policy, budget)
                           for one in ("stream_error", *instructions.REQUESTS)}
                    if constrained:
                        own["gain"] = table.gain(policy, base, budget)
                        own |= {f"{one}, change": own[one] - table.get(one, base, budget)
                                for one in instructions.REQUESTS}
                    for measure, values in own.items():
                        values = values[np.isfinite(values)]
                        if values.size > 1:
                            rows.append([length, order, policy, f"{budget:g}", measure, *interval(values),
                                         str(values.size), str(bad.sum())])
    return rows


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def draw_losses(rows, policies, title):
    """A map of losses relative to SnapKV."""
    found = {policy: {(int(row["prompt_tokens"]), float(row["budget"])): maps.ratio(
        float(row["relative"]), "*" if row["effect"] in ("less", "more") else "")
        for row in rows if row["policy"] == policy} for policy in policies}
    return maps.draw(
        title, "KL divergence of the next-token distribution from the full cache's, relative to snapkv with the same "
        "number of entries. Blue: less is lost. Geometric mean over 8, 6 and 4 texts; *: the 95 % interval is without "
        f"1 and the effect is 5 % at least. {plan.MODEL}.", {name: of for name, of in found.items() if of})


def draw_fragility(rows):
    """A map: the defensive step against the mean, by stream error and by outliers."""
    found = {}
    for row in rows:
        if row["of"] != CHANGED:
            continue
        star, value = "*" if row["told"] else "", float(row["mean"])
        cell = maps.ratio(value, star) if row["measure"] == STEP else (
            f"{value:+.1f}{star}".replace("-", "−"), value / 20)
        name = "stream error, ratio" if row["measure"] == STEP else "outliers, points"
        found.setdefault((name, row["selection"]), {})[int(row["prompt_tokens"]), float(row["budget"])] = cell
    return maps.draw(
        "The defensive step against the mean of the window",
        "Above: stream error of the step over that of the mean. Below: share of layers and steps that retain less than "
        "half of the importance, step minus mean, in percentage points. Blue: the step is better. Means over 6, 6 and 4 "
        f"texts; *: the 95 % interval is without 1 or 0. {plan.MODEL}.",
        {f"{name}: {selection}": found[name, selection] for name, selection in sorted(
            found, key=lambda one: (one[0].startswith("outliers"), list(replays.FORMS).index(one[1])))})


def main():
    parser = argparse.ArgumentParser(prog="long_tables.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", metavar="STUDIES", type=Path, nargs="?", default=HERE)
    studies = parser.parse_args().studies
    lost = read(studies / "losses/losses_relative.csv")
    for name, policies, title in (("losses_presets", PRESETS, "What the model loses, by length of the prompt"),
                                  ("losses_merged", MERGED, "Merged and stepwise caches: what the model loses")):
        output.save(studies, name, lambda policies=policies, title=title: draw_losses(lost, policies, title), ("png",))
    output.save(studies / "reproduction", "fragility_lengths",
                lambda: draw_fragility(read(studies / "reproduction/fragility_lengths.csv")), ("png",))


if __name__ == "__main__":
    main()
