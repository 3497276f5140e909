"""What the model loses: python -m kvsim.plots.study.losses DIR -o figs/

DIR holds the runs that scripts/losses.sh makes. Writes losses.csv (every text, policy and budget),
losses_summary.csv (means over texts with 95 % intervals) and the figures of docs/losses.md, and
prints its tables as Markdown.
"""

import argparse
from pathlib import Path

import numpy as np

from .. import statistics, style
from . import plan, runs

BASE = "snapkv"
FLOOR = "oracle-mean"
# Drawn and tabled first: one of each family, the methods of the papers, and the floor.
SHOWN = ("streaming", "knorm", "keydiff", "h2o", "tova", "snapkv", "adakv", "criticalkv", "cake",
         "restkv", "defensivekv", "defensivekv:code", "layer-defensivekv",
         "layer-defensivekv:code", plan.RECENT, FLOOR)
DRAWN = ("streaming", "h2o", "snapkv", "criticalkv", "cake", "restkv", "defensivekv:code",
         "layer-defensivekv:code", "layer-defensivekv", plan.RECENT)
LENGTHS = {"short": plan.SHORT, "long": plan.LONG,
           "all": plan.TEXTS}


def geometric(logs):
    """exp of the mean of logarithms over texts and its 95 % interval over resampled texts."""
    mean, (low, high) = statistics.over_traces(logs)
    return np.exp(mean), np.exp(low), np.exp(high)


def arithmetic(values):
    mean, (low, high) = statistics.over_traces(values)
    return mean, low, high


def summary(study, texts, policies, budgets):
    """Rows (policy, budget, column, mean, low, high, texts) over the texts that have the policy."""
    for policy in policies:
        for budget in budgets:
            own = study.texts((policy, BASE), (budget,), texts)
            if not own:
                continue
            yield policy, budget, "kl_relative", *geometric(
                study.relative(policy, budget, own)), len(own)
            for column in (*runs.LOSSES, *runs.REPLAYED):
                values = np.array([study.value(column, text, policy, budget) for text in own])
                if column in ("kl", "kl_worst"):
                    yield policy, budget, column, *geometric(np.log(values)), len(own)
                else:
                    yield policy, budget, column, *arithmetic(values), len(own)


def number(value):
    """Two digits after the point, three below 0.1."""
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def markdown(found, policies, budgets, column, title):
    print(f"\n{title}\n\n| policy | " + " | ".join(f"{b:g}" for b in budgets) + " |")
    print("|---" * (len(budgets) + 1) + "|")
    for policy in policies:
        cells = [found.get((policy, budget, column)) for budget in budgets]
        if any(cells):
            print(f"| `{policy}` | " + " | ".join(
                f"{number(c[0])} [{number(c[1])}, {number(c[2])}]" if c else "-" for c in cells)
                + " |")


def draw(study, groups, budgets):
    """KL relative to BASE by budget, a panel per length of prompt."""
    keys = [style.key(policy, style.line_style(i)) for i, policy in enumerate(DRAWN)]
    keys.append(style.key(f"{FLOOR}: hindsight", {"color": style.REFERENCE, "linestyle": "-"}))
    fig, axes = style.frame(
        "What the model loses", "KL divergence of the next-token distribution from the full "
        f"cache's, relative to {BASE} at the same number of entries; geometric mean over texts, "
        "band: 95 % interval over texts", 1, len(groups), 2.9, keys,
        ("budget (fraction of the prompt kept)", f"loss relative to {BASE}"), sharey=True)
    for ax, (name, texts) in zip(axes.flat, groups.items()):
        for i, policy in enumerate((*DRAWN, FLOOR)):
            look = style.line_style(i) if policy != FLOOR else \
                {"color": style.REFERENCE, "linestyle": "-", "marker": ""}
            at = [budget for budget in budgets if study.texts((policy, BASE), (budget,), texts)]
            if not at:
                continue
            mean, low, high = np.array([geometric(study.relative(
                policy, b, study.texts((policy, BASE), (b,), texts))) for b in at]).T
            ax.plot(at, mean, **look)
            style.band(ax, at, (low, high), look)
        ax.set_yscale("log")
        style.log_ticks(ax.yaxis)
        ax.set_xticks(budgets, [f"{b:g}" for b in budgets])
        ax.set_title(name)
    return fig


def main():
    parser = argparse.ArgumentParser(prog="losses.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("-o", "--out", required=True, type=Path, metavar="FIGS")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    study = runs.Study(options.folder)
    if study.missing:
        print(f"not run: {len(study.missing)} of text and group, {study.missing[0]} first")
    runs.write(options.out / "losses.csv", study.rows())
    budgets = plan.BUDGETS
    policies = list(dict.fromkeys(policy for run in study.runs for policy in run.policies))
    rows = [["texts", "policy", "budget", "measure", "mean", "low", "high", "count"]]
    for length, texts in LENGTHS.items():
        found = {}
        for policy, budget, column, *values in summary(study, texts, policies, budgets):
            found[policy, budget, column] = values
            rows.append([length, policy, budget, column, *(f"{v:.5g}" for v in values)])
        for column, title in (("kl_relative", f"KL relative to {BASE}"), ("kl", "KL, nats"),
                              ("kl_worst", "KL, worst 5 % of the steps, nats"),
                              ("top1", "same most likely token"),
                              ("nll", "NLL difference, nats")):
            markdown(found, [*SHOWN, *(p for p in policies if p not in SHOWN)], budgets, column,
                     f"{length}: {title}")
    runs.write(options.out / "losses_summary.csv", rows)
    groups = {}
    for texts in (plan.SHORT, plan.LONG):
        if run := study.texts((BASE,), (budgets[1],), texts):
            groups[f"{len(run)} texts of about {np.round(texts[0].prompt_tokens, -2)} tokens"] = run
    style.use()
    figure = draw(study, groups, budgets)
    for ending in ("png", "pdf"):
        style.save(figure, options.out / f"losses.{ending}")
        print(options.out / f"losses.{ending}")


if __name__ == "__main__":
    main()
