"""The policy found with kvsim: studies/make.sh rehearsal LOSSES.csv... -o figs/

LOSSES.csv are tables of losses as findings/losses.py writes them. Prints the tables of
studies/rehearsal.md, texts that the search did not see, and draws its figure: losses relative to the
published policy that loses least at that budget. With --fresh the texts are all of the tables, none
of which is in the study.
"""

import csv

import numpy as np

from kvsim.plots import statistics, style
from . import output, plan

BUDGETS = plan.FEW_BUDGETS
ASIDE = tuple(text for text in plan.TEXTS
              if text.kind in plan.SET_ASIDE or text.prompt_tokens != plan.SHORT[0].prompt_tokens)
SHOWN = (plan.RECENT, plan.FOUND, "layer-defensivekv,smooth=none", "layer-defensivekv:code",
         "layer-defensivekv", "defensivekv:code", "cake", "criticalkv", "h2o", "snapkv", "restkv")
FLOOR = "oracle-mean"
DRAWN = (plan.RECENT, plan.FOUND, "layer-defensivekv:code", "defensivekv:code", "cake", "h2o",
         "snapkv", FLOOR)
BANDS = (plan.RECENT, plan.FOUND)


def read(paths):
    """KL by (text, policy, budget); a later table replaces an earlier one."""
    losses = {}
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                text = plan.TextPlan(row["text"], int(row["prompt_tokens"]), int(row["seed"]))
                losses[text, row["policy"], float(row["budget"])] = float(row["kl"])
    return losses


class Comparison:
    """Losses of the texts that were set aside."""

    def __init__(self, losses, fresh=False):
        self.losses = losses
        texts = dict.fromkeys(text for text, _, _ in losses) if fresh else ASIDE
        self.texts = [text for text in texts
                      if all((text, plan.FOUND, budget) in losses for budget in BUDGETS)]
        self.best = {budget: self.best_published(budget) for budget in BUDGETS}

    def logs(self, policy, budget, texts):
        """Logarithms of the losses by text; None where a text lacks one."""
        values = [self.losses.get((text, policy, budget)) for text in texts]
        return None if None in values or not values else np.log(values)

    def best_published(self, budget):
        """The preset of the geometric mean that is least over these texts."""
        found = {policy: self.logs(policy, budget, self.texts) for policy in plan.EVICTION}
        return min((logs.mean(), policy) for policy, logs in found.items() if logs is not None)[1]

    def ratio(self, policy, budget, texts=None, base=None):
        """Geometric mean, its interval over texts, and the worst text, relative to the best
        published policy; None where it has not run."""
        texts = texts or self.texts
        own = self.logs(policy, budget, texts)
        if own is None:
            return None
        logs = own - self.logs(base or self.best[budget], budget, texts)
        mean, (low, high) = statistics.over_traces(logs)
        return np.exp([mean, low, high, logs.max()])


def digits(value):
    """Two significant digits."""
    return f"{value:.{max(0, 1 - int(np.floor(np.log10(value))))}f}"


def table(title, rows, cell):
    found = {name: [cell(name, budget) for budget in BUDGETS] for name in rows}
    found = {name: cells for name, cells in found.items() if set(cells) != {None}}
    if not found:
        return
    print(f"\n{title}\n\n| | " + " | ".join(f"{budget:g}" for budget in BUDGETS) + " |")
    print("|---" * (len(BUDGETS) + 1) + "|")
    for name, cells in found.items():
        print(f"| `{name}` | " + " | ".join("-" if one is None else one for one in cells) + " |")


def print_tables(found):
    short = [text for text in found.texts
             if text.prompt_tokens == plan.SHORT[0].prompt_tokens]
    print(f"{len(found.texts)} texts: " + ", ".join(text.stem for text in found.texts))
    print("best published: " + ", ".join(f"{b:g} {p}" for b, p in found.best.items()))

    def relative(policy, budget):
        one = found.ratio(policy, budget)
        return None if one is None else "{} [{}, {}]".format(*map(digits, one[:3]))

    def worst(policy, budget):
        one = found.ratio(policy, budget)
        return None if one is None else digits(one[3])

    def part_of(whole):
        def part(policy, budget):
            one = found.ratio(policy, budget, short, whole)
            return None if one is None else "{} [{}, {}]".format(*map(digits, one[:3]))
        return part

    table("relative to the best published", [*SHOWN, FLOOR], relative)
    table("the worst text", [plan.FOUND, plan.RECENT], worst)
    table("KL, nats", [plan.FOUND, plan.RECENT, *dict.fromkeys(found.best.values()), FLOOR],
          lambda policy, budget: None if (logs := found.logs(policy, budget, found.texts)) is None
          else digits(np.exp(logs.mean())))
    for whole, parts in ((plan.FOUND, plan.FOUND_PARTS), (plan.RECENT, plan.RECENT_PARTS)):
        table(f"a part of {whole} changed, relative to all of it ({len(short)} texts)", parts,
              part_of(whole))
    for text in found.texts:
        for policy in (plan.FOUND, plan.RECENT):
            own = [found.ratio(policy, budget, [text]) for budget in BUDGETS]
            if all(one is not None for one in own):
                print(text.stem, policy, *(digits(one[0]) for one in own))


def draw(found):
    """A line per policy over budgets; the best published policy of each budget is 1."""
    fig, axes = style.frame(
        "What a rehearsed prompt saves", "KL divergence of the next-token distribution from the "
        "full cache's, relative to the published policy that loses least at that budget (of those that read once). Lower is "
        f"better. Geometric mean over {len(found.texts)} texts that no search saw; bands: 95 % intervals of "
        f"{' and '.join(BANDS)}. {plan.MODEL}.\n{FLOOR} knows the future: no competitor.", 1, 1, 3.2, (),
        ("budget (fraction of the prompt kept)", "loss relative to the best published"))
    style.over_budgets(axes.flat[0], BUDGETS, DRAWN, BANDS, found.ratio)
    return fig


def main():
    parser = output.parser(__doc__, "rehearsal", "LOSSES.csv", "FIGS", nargs="+")
    parser.add_argument("--fresh", action="store_true",
                        help="the tables have texts that are not in the study")
    options = parser.parse_args()
    found = Comparison(read(options.source), options.fresh)
    if not found.texts:
        parser.error(f"no text set aside has {plan.FOUND} at every budget")
    print_tables(found)
    output.save(options.out, "rehearsal", lambda: draw(found))


if __name__ == "__main__":
    main()
