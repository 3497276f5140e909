"""The best policy for each shape of a cache: studies/make.sh shapes DIR -o STUDIES

DIR holds what studies/shapes.sh makes: closed loops of every policy in every shape, on texts that
were set aside. Writes losses/shapes.csv and shapes.png in STUDIES; `pages` fills the tables of
studies/shapes.md from the first.
"""

import csv

import numpy as np

from kvsim.plots import statistics, style
from . import output, plan
from .losses import number

TOKENS, STEPS = 704, 128
TEXTS = (("python", 5), ("summary", 71), ("manual", 5), ("questions", 71), ("perl", 5),
         ("fewshot", 71), ("licence", 3), ("code", 71), ("needles4", 71))
BUDGETS = (0.1, 0.2, 0.35, 0.5)
PUBLISHED, RESHAPED = "published", "published score, our shape"
ONCE, TWICE, HINDSIGHT = "reads once", "reads twice", "hindsight"
_COUNT = "allocate=composite,composite_first=own"
_SET = f"union=root-mean-square,{_COUNT}"
_WORTH = "block_score=root-mean-square"   # of a page
_PAGES = f"block=16,{_WORTH},sinks=4,{_SET}"
# By shape: (record, what it is); published scores in the shape first.
SHAPES = {
    "equal budgets per head": (
        ("kvzip:uniform", PUBLISHED), ("expected-attention", PUBLISHED),
        ("attention-matching,allocate=uniform", RESHAPED),
        ("rehearsal:recent-uniform", ONCE), ("rehearsal:reread-uniform", TWICE),
        ("oracle-stream,allocate=uniform", HINDSIGHT)),
    "one count per layer": (
        ("kvcompose", PUBLISHED), ("kvzip,allocate=composite", RESHAPED),
        ("rehearsal:recent-count", ONCE), ("rehearsal:reread-count", TWICE),
        (f"oracle-stream,{_COUNT}", HINDSIGHT)),
    "one set per layer": (
        ("kvzip:set", RESHAPED), ("kvcompose:set", RESHAPED),
        ("rehearsal:recent-set", ONCE), ("rehearsal:reread-set", TWICE),
        (f"oracle-stream,{_SET}", HINDSIGHT)),
    "one set of pages per layer": (
        ("kvzip:pages", PUBLISHED), (f"kvzip:pages,{_WORTH}", RESHAPED),
        ("kvcompose:set,block=16,block_score=max,sinks=4", RESHAPED),
        (f"kvcompose:set,block=16,{_WORTH},sinks=4", RESHAPED),
        ("rehearsal:recent-pages", ONCE), ("rehearsal:reread-pages", TWICE),
        (f"oracle-stream,{_PAGES}", HINDSIGHT)),
}
HEADER = ("text", "seed", "shape", "policy", "budget", "kl")
WIDTH = 2   # panels of the figure side by side


def records():
    """Every (shape, record), in the order in which they are replayed."""
    return [(shape, record) for shape, listed in SHAPES.items() for record, _ in listed]


def stem(text):
    return f"{text[0]}_{TOKENS}_{text[1]}"


def rows(folder):
    """A row per text, shape, record and budget: the mean KL over later tokens, nats."""
    import xarray

    for text in TEXTS:
        path = folder / f"{stem(text)}.loop.nc"
        if not path.is_file():
            continue
        with xarray.open_dataset(path, engine="h5netcdf") as loop:
            found = loop.kl_divergence_mean.values
            budgets = [float(label) for label in loop.budget_label.values]
        if found.shape[0] != len(records()):
            raise SystemExit(f"{path}: {found.shape[0]} policies, expected {len(records())}; "
                             "it is of another list: remove it and run studies/shapes.sh again")
        for p, (shape, record) in enumerate(records()):
            for budget in BUDGETS:
                yield [*text, shape, record, budget, f"{found[p, budgets.index(budget)]:.5g}"]


class Losses:
    """Losses by record and budget, over the texts of the table."""

    def __init__(self, path):
        self.kl = {}
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                self.kl.setdefault((row["policy"], float(row["budget"])), {})[
                    row["text"], row["seed"]] = float(row["kl"])
        self.texts = list(next(iter(self.kl.values())))

    def logs(self, record, budget):
        return np.log([self.kl[record, budget][text] for text in self.texts])

    def best(self, shape, budget):
        """The published score that loses least in the shape, by geometric mean over texts."""
        return min((record for record, what in SHAPES[shape] if what in (PUBLISHED, RESHAPED)),
                   key=lambda record: self.logs(record, budget).mean())

    def relative(self, shape, record, budget):
        """To the best published one: geometric mean and its interval over texts."""
        logs = self.logs(record, budget) - self.logs(self.best(shape, budget), budget)
        mean, (low, high) = statistics.over_traces(logs)
        return tuple(np.exp([mean, low, high]))


def table(studies, shape):
    """Header and rows: losses relative to the best published one at the budget; that in nats."""
    losses = Losses(studies / "losses/shapes.csv")

    def cell(record, budget):
        if record == losses.best(shape, budget):
            return f"1 ({number(np.exp(losses.logs(record, budget).mean()))} nats)"
        mean, low, high = losses.relative(shape, record, budget)
        return f"{number(mean)} [{number(low)}, {number(high)}]"

    return (["policy", *(f"{budget:g}" for budget in BUDGETS)],
            [[f"`{record}`" + (f" ({what})" if what in (PUBLISHED, RESHAPED, HINDSIGHT) else ""),
              *(cell(record, budget) for budget in BUDGETS)] for record, what in SHAPES[shape]])


def cost(studies):
    """Header and rows: what a shape costs, the least loss in it over that with equal budgets."""
    losses = Losses(studies / "losses/shapes.csv")

    def cell(record, budget, base):
        mean, (low, high) = statistics.over_traces(
            losses.logs(record, budget) - losses.logs(base, budget))
        mean, low, high = np.exp([mean, low, high])
        return f"{number(mean)} [{number(low)}, {number(high)}]"

    def of(shape, kind):
        return next(record for record, what in SHAPES[shape] if what == kind)

    first = next(iter(SHAPES))
    return (["shape", "of", *(f"{budget:g}" for budget in BUDGETS)],
            [[shape, kind, *(cell(of(shape, kind), budget, of(first, kind)) for budget in BUDGETS)]
             for shape in list(SHAPES)[1:] for kind in (TWICE, HINDSIGHT)])


def draw(studies):
    """A panel per shape: losses relative to the best published score in it, over budgets."""
    losses = Losses(studies / "losses/shapes.csv")
    names = {ONCE: "rehearsal:recent, in the shape", TWICE: "rehearsal:reread, in the shape",
             HINDSIGHT: "hindsight, in the shape"}
    looks = style.policy_looks(("rehearsal:recent", "rehearsal:reread", "oracle-stream"))
    looks = dict(zip(names, looks.values()))
    fig, axes = style.frame(
        "What is lost in each shape of a cache",
        "KL divergence of the next-token distribution from the full cache's, relative to the published score that "
        "loses least in the shape at that budget (1, its loss in nats above the axis). Lower is better. Geometric "
        f"mean over {len(losses.texts)} texts; bars: 95 % intervals. {plan.MODEL}.\nHindsight knows the future: "
        "no competitor.", 2, WIDTH, 2.1, [style.key(names[kind], looks[kind]) for kind in names],
        ("budget (fraction of the prompt kept)", "loss relative to the best published score"),
        sharex=True, sharey=True)
    for ax, (shape, listed) in zip(axes.flat, SHAPES.items()):
        ax.axhline(1, color=style.REFERENCE, linewidth=0.8)
        for kind, look in looks.items():
            record = next(record for record, what in listed if what == kind)
            mean, low, high = np.array([losses.relative(shape, record, budget)
                                        for budget in BUDGETS]).T
            ax.errorbar(BUDGETS, mean, (mean - low, high - mean), **{**look, "linewidth": 1.1})
        for budget in BUDGETS:
            nats = np.exp(losses.logs(losses.best(shape, budget), budget).mean())
            ax.text(budget, 0.02, f"{number(nats)} nats", fontsize=5.5, ha="center", va="bottom",
                    transform=ax.get_xaxis_transform(), color="0.3")
        ax.set(xscale="log", yscale="log", title=shape, xlim=(0.088, 0.57), ylim=(0.018, None))
        style.log_ticks(ax.yaxis, every=(1, 2, 5))
        ax.set_xticks(BUDGETS, [f"{b:g}" for b in BUDGETS])
        ax.minorticks_off()
    return fig


def main():
    output.write_page(__doc__, "shapes", HEADER, rows, draw)


if __name__ == "__main__":
    main()
