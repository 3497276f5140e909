"""Who survives the second question? studies/make.sh second_question DIR -o STUDIES

DIR holds what studies/second_question.sh makes: traces of a text with five questions as probes, and
for every question the results and the closed loop measured on it. Writes losses/second_question.csv
and second_question.png in STUDIES, where `pages` finds the losses for the tables.
"""

import csv
import re
from pathlib import Path

import numpy as np

from kvsim.plots import statistics, style
from . import output, plan
from .losses import number

KIND, TOKENS, SEEDS = "questions_agnostic", 704, (51,)
QUESTIONS = 5
BUDGETS = (0.1, 0.2, 0.5)
PROBE = "question{}"
# Sets that were chosen before any question, and those of policies that look at one: how each looks.
# The newest 32 entries stay in both, as with snapkv's own window.
BEFORE = ("streaming", "snapkv", "expected-attention", "expected-attention:joint",
          "layer-defensivekv:code", plan.RIVAL, "kvzip-plus", plan.RECENT, plan.REREAD,
          "oracle-stream")
HINDSIGHT = "oracle-stream"   # of the very question that it is measured on
LOOKING = {policy: f"{policy},{how},probe={PROBE}" for policy, how in (
    ("snapkv", "queries=probe,recent=32"), ("layer-defensivekv:code", "queries=probe,recent=32"),
    (plan.RECENT, "join=power-mean"))}
HEADER = ("seed", "policy", "chosen_for", "measured_on", "budget", "kl")
FORMS = {"before": "before any question", "same": "for this question",
         "other": "for another question"}
DRAWN = ("snapkv", "layer-defensivekv:code", "kvzip", plan.RECENT, plan.REREAD)


def stem(seed):
    return f"{KIND}_{TOKENS}_{seed}"


def questions_of(prompt, answer):
    """What stands before the questions of a generated text, and its first [(question, answer)]."""
    context, _, asked = prompt.partition("<compress/>")
    numbered = [re.findall(r"^\d+\. (.*)$", text.replace("</turn>", ""), re.M)
                for text in (asked, answer)]
    pairs = list(zip(*numbered))[:QUESTIONS]
    if len(pairs) < QUESTIONS:
        raise SystemExit(f"a text has {len(pairs)} questions, expected {QUESTIONS}; more "
                         "--prompt-tokens make more")
    return context, pairs


def write_texts(folder):
    """Of every text: its context with the first question behind it, and all questions."""
    for seed in SEEDS:
        name = folder / stem(seed)
        context, pairs = questions_of(Path(f"{name}.prompt.txt").read_text(encoding="utf-8"),
                                      Path(f"{name}.answer.txt").read_text(encoding="utf-8"))
        for ending, text in (
                ("context", f"{context}<compress/>\n{pairs[0][0]}</turn>\n"),
                ("first", f"{pairs[0][1]}\n"),
                ("questions", "".join(f"{asked}\t{answered}\n" for asked, answered in pairs))):
            Path(f"{name}.{ending}.txt").write_text(text, encoding="utf-8")


def records():
    """Every record that is replayed."""
    return [*BEFORE, *(form.format(k) for form in LOOKING.values()
                       for k in range(1, QUESTIONS + 1))]


def told():
    """(policy, question that the set was chosen for, empty for none) of every record, in order."""
    return [*((policy, "") for policy in BEFORE),
            *((policy, str(k)) for policy in LOOKING for k in range(1, QUESTIONS + 1))]


def rows(folder):
    """A row per text, record, question measured on, and budget: the loss on the answer, nats."""
    import xarray

    for seed in SEEDS:
        for measured in range(1, QUESTIONS + 1):
            path = folder / f"{stem(seed)}.{PROBE.format(measured)}.loop.nc"
            if not path.is_file():
                continue
            with xarray.open_dataset(path, engine="h5netcdf") as loop:
                found = loop.kl_divergence_answer.values
                budgets = [float(label) for label in loop.budget_label.values]
            for p, (policy, chosen) in enumerate(told()):
                for budget in BUDGETS:
                    yield [seed, policy, chosen, measured, budget,
                           f"{found[p, budgets.index(budget)]:.5g}"]


class Losses:
    """Losses by text and question measured on: {(policy, form, budget): {question: geometric mean
    over the questions that sets were chosen for, nats}}."""

    def __init__(self, path):
        cells = {}
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                form = "before" if not row["chosen_for"] else \
                    "same" if row["chosen_for"] == row["measured_on"] else "other"
                key = row["policy"], form, float(row["budget"])
                cells.setdefault(key, {}).setdefault((row["seed"], row["measured_on"]), []).append(
                    float(row["kl"]))
        self.means = {key: {one: float(np.exp(np.mean(np.log(values))))
                            for one, values in of.items()} for key, of in cells.items()}

    def over_questions(self, policy, form, budget):
        """Geometric mean over questions and its interval, nats; None where nobody ran it."""
        of = self.means.get((policy, form, budget))
        if of is None:
            return None
        mean, (low, high) = statistics.over_traces(np.log(list(of.values())))
        return tuple(np.exp([mean, low, high]))


def table(studies):
    """Header and rows: losses in nats by policy, by what the set was chosen for, and budget."""
    losses = Losses(studies / "losses/second_question.csv")

    def cell(policy, form):
        found = [losses.over_questions(policy, form, budget) for budget in BUDGETS]
        return ", ".join("-" if one is None else number(one[0]) for one in found) \
            if any(found) else "-"

    listed = [[f"`{policy}`" + (" (hindsight)" if policy == HINDSIGHT else ""),
               *(cell(policy, form) for form in FORMS)] for policy in BEFORE]
    return ["policy", *FORMS.values()], listed


def intervals(studies):
    """Header and rows: what a set for another question loses over one chosen before any, and over
    the set for this very question: ratio and its interval over questions."""
    losses = Losses(studies / "losses/second_question.csv")

    def ratio(policy, over, budget):
        mine, base = (losses.means[policy, form, budget] for form in ("other", over))
        mean, (low, high) = statistics.over_traces(np.log([mine[one] / base[one] for one in mine]))
        mean, low, high = np.exp([mean, low, high])
        return f"{number(mean)} [{number(low)}, {number(high)}]"

    return (["policy", "over", *(f"{budget:g}" for budget in BUDGETS)],
            [[f"`{policy}`", FORMS[over], *(ratio(policy, over, budget) for budget in BUDGETS)]
             for policy in LOOKING for over in ("same", "before")])


def draw(studies):
    """A panel per budget, a row per policy, a mark for each way to choose the set."""
    losses = Losses(studies / "losses/second_question.csv")
    ways = {form: {**style.line_style(k), "linestyle": ""} for k, form in enumerate(FORMS)}
    fig, axes = style.frame(
        "Who survives the second question?", "KL divergence of the next-token distribution from "
        "the full cache's, on the answer. Lower is better. Geometric mean over "
        f"{QUESTIONS} questions to one text; bars: 95 % intervals over questions. {plan.MODEL}.", 1,
        len(BUDGETS), 1.9, [style.key(f"set chosen {FORMS[form]}", look) for form, look in ways.items()],
        ("loss, nats", ""), sharey=True)
    for ax, budget in zip(axes.flat, BUDGETS):
        for row, policy in enumerate(DRAWN):
            for k, (form, look) in enumerate(ways.items()):
                one = losses.over_questions(policy, form, budget)
                if one is not None:
                    mean, low, high = one
                    ax.errorbar(mean, row + 0.2 * (k - 1), xerr=[[mean - low], [high - mean]],
                                **{**look, "linewidth": 0.8})
        ax.set(xscale="log", title=f"budget {budget:g}")
        style.log_ticks(ax.xaxis, every=(1,) if budget == BUDGETS[-1] else (1, 2, 5))
        ax.set_yticks(range(len(DRAWN)), DRAWN)
    axes.flat[0].set_ylim(len(DRAWN) - 0.5, -0.5)
    return fig


def main():
    output.write_page(__doc__, "second_question", HEADER, rows, draw)


if __name__ == "__main__":
    main()
