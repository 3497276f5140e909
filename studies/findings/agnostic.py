"""What is lost where a text is compressed before the question is known (DefensiveKV 4.1):

    studies/make.sh agnostic DIR -o studies/reproduction/agnostic.csv

DIR holds the study `agnostic` of studies/losses.sh: texts with `<compress/>` before the question. The losses of the same texts with the question known are those of
studies/losses/losses.csv.
"""

import csv

import numpy as np

from kvsim.studies.folder import Folder
from kvsim.plots import statistics
from . import output, plan, runs

STUDY = plan.STUDIES["agnostic"]
TOKENS = STUDY.texts[0].prompt_tokens
POLICIES, BUDGETS = STUDY.groups["presets"], STUDY.budgets
BASE = POLICIES[0]
BASELINES = (BASE, "criticalkv", "cake")
HEADER = ("text", "seed", "policy", "budget", "kl")


def rows(folder):
    """A row per text, policy and budget: the loss on the answer alone, nats."""
    losses = Folder(folder / "agnostic").losses().set_index(["text", "policy", "budget"]).kl_answer
    for text in STUDY.texts:
        for policy in POLICIES:
            for budget in BUDGETS:
                lost = losses.get((text.name, policy, str(budget)))
                if lost is not None:
                    yield [text.kind.removesuffix("_agnostic"), text.seed, policy, budget,
                           f"{lost:.5g}"]


def read(path):
    """{(text, seed, policy, budget): loss} of a table of losses."""
    with path.open(encoding="utf-8") as file:
        return {(row["text"], row["seed"], row["policy"], float(row["budget"])): float(row["kl"])
                for row in csv.DictReader(file)
                if int(row.get("prompt_tokens", TOKENS)) == TOKENS}


class Losses:
    """Losses of the same texts compressed before the question and after it, from the files in STUDIES:
    relative to the base's in the same form, of the base itself in nats."""

    def __init__(self, studies):
        self.forms = {"before": read(studies / "reproduction/agnostic.csv"),
                      "after": read(studies / "losses/losses.csv")}
        self.texts = list(dict.fromkeys(key[:2] for key in self.forms["before"]))

    def mean(self, form, texts, policy, budget, base=BASE):
        """Geometric mean over the texts, with its interval where there are several."""
        losses = self.forms[form]
        values = np.array([losses[*text, policy, budget] for text in texts])
        if policy != base:
            values = values / [losses[*text, base, budget] for text in texts]
        mean, (low, high) = map(np.exp, statistics.over_traces(np.log(values)))
        return f"{mean:.2f}" + (f" [{low:.2f}, {high:.2f}]" if len(texts) > 1 else "")


def named(policy):
    return f"`{policy}`" + {BASE: ", nats", "oracle-mean": " (hindsight)"}.get(policy, "")


def by_text(studies):
    """A row per text and form, a column per policy, losses at BUDGETS."""
    losses = Losses(studies)
    rows = [[" ".join(text[:1 + (text[1] != "0")]), form,
             *(", ".join(losses.mean(form, [text], policy, budget) for budget in BUDGETS)
               for policy in POLICIES)]
            for text in losses.texts for form in losses.forms]
    return ["text", "compressed", *map(named, POLICIES)], rows


def against(studies):
    """A row per method of the paper and baseline, a column per budget: the loss of the first over that of
    the second, both compressed before the question."""
    losses = Losses(studies)
    rows = [[f"`{policy}` / `{base}`", *(losses.mean("before", losses.texts, policy, budget, base)
                                         for budget in BUDGETS)]
            for policy in POLICIES if "defensivekv" in policy for base in BASELINES]
    return ["the first over the second", *(f"{budget:g}" for budget in BUDGETS)], rows


def over_texts(studies):
    """A row per policy and form, a column per budget: means over the texts."""
    losses = Losses(studies)
    rows = [[named(policy), form, *(losses.mean(form, losses.texts, policy, budget)
                                    for budget in BUDGETS)]
            for policy in POLICIES for form in losses.forms]
    return ["policy", "compressed", *(f"{budget:g}" for budget in BUDGETS)], rows


def main():
    parser = output.parser(__doc__, "agnostic", "DIR", "TABLE.csv")
    options = parser.parse_args()
    listed = list(rows(options.source))
    if not listed:
        parser.error(f"{options.source}: no finished text of the study agnostic")
    runs.write(options.out, [HEADER, *listed])


if __name__ == "__main__":
    main()
