"""Policies that evict while the model reasons: studies/make.sh decoding DIR -o STUDIES

DIR holds the runs of `studies/losses.sh DIR decoding`: short questions with long worked answers. Writes
losses/decoding.csv and decoding.png in STUDIES, where `pages` finds the losses for the table.
"""

import csv
import itertools

import numpy as np

from kvsim import ranking
from kvsim.plots import style
from . import output, plan, runs
from .losses import number

POLICIES = plan.DECODING
NAMES = [text.name for text in plan.WORKED]
PARTS = 8   # stretches of the answer, of as many tokens each
HEADER = ("text", "policy", "budget", "part", "kl")


def rows(folder):
    """A row per text, policy, budget and stretch of the answer: the loss there, nats. `all` is the
    whole answer; `low` and `high` its 95 % interval over blocks of steps."""
    import xarray

    for text in plan.WORKED:
        for one in runs.parts(folder, text):
            with xarray.open_dataset(one.loop, engine="h5netcdf") as loop:
                found = loop.kl_divergence.values
                names, budgets = ([str(label) for label in axis.values]
                                  for axis in (loop.policy, loop.budget_label))
            for (p, name), (b, budget) in itertools.product(enumerate(names), enumerate(budgets)):
                steps = found[p, b]
                answer, = ranking.rank([ranking.contest([steps], units="steps", scale="log")])
                low, high = (answer["rows"][0]["estimate"][end] for end in ("low", "high"))
                parts = np.array_split(steps, PARTS)
                for part, value in (("all", steps.mean()), ("low", low), ("high", high),
                                    *((k + 1, one.mean()) for k, one in enumerate(parts))):
                    yield [text.name, name, budget, part, f"{value:.5g}"]


def read(studies):
    """{(text, policy, budget): {part: loss}}."""
    found = {}
    with (studies / "losses/decoding.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["text"], row["policy"], int(row["budget"])), {})[
                row["part"]] = float(row["kl"])
    return found


def table(studies):
    """Header and rows: losses in nats over the whole answer, with intervals, by text and budget."""
    found = read(studies)
    columns = sorted({(text, budget) for text, _, budget in found},
                     key=lambda one: (one[1], NAMES.index(one[0])))

    def cell(policy, text, budget):
        one = found.get((text, policy, budget))
        return "-" if one is None else (
            f"{number(one['all'])} [{number(one['low'])}, {number(one['high'])}]")

    return (["policy", *(f"{text.split('-')[0]}, {budget}" for text, budget in columns)],
            [[f"`{policy}`", *(cell(policy, *column) for column in columns)]
             for policy in POLICIES])


def draw(studies):
    """A map per text and budget: policies by eighth of the answer, and the whole answer in bold."""
    found = read(studies)
    budgets = sorted({budget for _, _, budget in found})
    fig, axes = style.frame(
        "What is lost while an answer grows", "KL divergence of the next-token distribution from the full cache's, "
        "nats, mean over eighths of an answer of 2048 tokens; in bold the whole answer. Darker: more is lost, on a log "
        f"scale; 0.00: below 0.005. {plan.MODEL}.", len(budgets), len(NAMES), 1.75, (), ("eighth of the answer", ""),
        sharex=True, sharey=True)
    parts = [*map(str, range(1, PARTS + 1)), "all"]
    for ax, (budget, text) in zip(np.ravel(axes), itertools.product(budgets, NAMES)):
        values = np.array([[found.get((text, policy, budget), {}).get(part, np.nan) for part in parts]
                           for policy in POLICIES])
        shades = 3 + np.log10(np.maximum(values[:, :PARTS], 1e-3))   # 0 at a thousandth of a nat
        style.number_map(ax, values, shades, 4, "{:.2f}".format, "–")
        ax.set_title(f"{text.split('-')[0]}, {budget} slots a head")
        ax.set_xticks(range(len(parts)), parts)
        ax.set_yticks(range(len(POLICIES)), [one.split(",schedule")[0] for one in POLICIES], fontsize=5)
    return fig


def main():
    output.write_page(__doc__, "decoding", HEADER, rows, draw)


if __name__ == "__main__":
    main()
