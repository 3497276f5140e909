"""Does KL order policies as tasks do? studies/make.sh tasks [DIR] [-o STUDIES]

DIR is a study with tasks (kvsim study --tasks). Writes its accuracy.csv, agreement.csv and tried.csv
to studies/contributed/MODEL/, and studies/tasks.png, which without DIR is drawn of those that stand
there; `pages` makes the tables of studies/tasks.md of them. A study of the second model has tasks alone, which
--options prints for `kvsim study`, and stands in studies/losses/tasks_*.csv.
"""

import argparse
import json
import shutil
from pathlib import Path

import pandas

from kvsim.plots import statistics, style
from . import plan, set_aside

MODEL = "SmolLM2-135M-Instruct"
FILES = ("accuracy.csv", "agreement.csv", "tried.csv")
ALL = "all"
#: Tasks that are one text, so that a base model, which has no turns, can be asked them.
SECOND, SECOND_TASKS = "gemma3-270m", "labels,codes,lookup"
NAMED = ("rehearsal:reread", "rehearsal:recent", "kvzip", "layer-defensivekv:code,window=16",
         "streaming")
BY_TASK = (0.2, 0.5)   # budgets of the tables by task


def place(studies, model, name):
    """Where a table of a model's tasks stands."""
    return studies / (f"losses/tasks_{name}" if model == SECOND else f"contributed/{MODEL}/{name}")


class Tables:
    """What stands in studies/ of a study with tasks."""

    def __init__(self, studies, model=MODEL):
        self.accuracy, self.agreement, self.tried = (pandas.read_csv(place(studies, model, one)) for one in FILES)

    @property
    def budgets(self):
        return sorted(set(self.accuracy.budget))

    @property
    def tasks(self):
        return list(dict.fromkeys(self.tried.task))

    def of(self, task, question=ALL):
        found = self.accuracy[(self.accuracy.task == task) & (self.accuracy.question == question)]
        return {(one.policy, one.budget): one for one in found.itertuples()}

    def policies(self):
        """Best first, over all tasks, questions and budgets."""
        own = self.accuracy[(self.accuracy.task == ALL) & (self.accuracy.question == ALL)]
        return list(own.groupby("policy", sort=False).accuracy.mean().sort_values(
            ascending=False, kind="stable").index)

    def order(self, task, budget, by, question=ALL):
        own = self.agreement
        found = own[(own.task == task) & (own.question == question) & (own.budget == budget)
                    & (own.by == by)]
        return next(found.itertuples(), None)


def shown(value):
    return "-" if value != value else f"{value:.2f}"


def accuracy(studies, model=MODEL):
    """Header and rows: accuracy of all tasks by policy and budget."""
    tables = Tables(studies, model)
    cells = tables.of(ALL)

    def cell(policy, budget):
        one = cells[policy, budget]
        return f"{one.accuracy:.2f} [{one.low:.2f}, {one.high:.2f}]"

    return (["policy", *(f"{budget:g}" for budget in tables.budgets)],
            [[f"`{policy}`", *(cell(policy, budget) for budget in tables.budgets)]
             for policy in tables.policies()])


def by_task(studies, model=MODEL):
    """Header and rows: accuracy by task, at two budgets."""
    tables = Tables(studies, model)
    cells = {task: tables.of(task) for task in tables.tasks}

    def cell(policy, task):
        return ", ".join(shown(cells[task][policy, budget].accuracy)
                         if (policy, budget) in cells[task] else "-" for budget in BY_TASK)

    return (["policy", *(f"`{task}`" for task in tables.tasks)],
            [[f"`{policy}`", *(cell(policy, task) for task in tables.tasks)]
             for policy in tables.policies()])


def by_question(studies, model=MODEL):
    """Header and rows: accuracy with the question known and unknown, at two budgets."""
    tables = Tables(studies, model)
    forms = ("known", "unknown")
    cells = {form: tables.of(ALL, form) for form in forms}
    return (["policy", *(f"{form}, {budget:g}" for form in forms for budget in BY_TASK)],
            [[f"`{policy}`", *(shown(cells[form][policy, budget].accuracy)
                               for form in forms for budget in BY_TASK)]
             for policy in tables.policies()])


def said(one):
    if one is None:
        return "-"
    alike = "" if one.alike != one.alike else f" ({100 * one.alike:.0f} % of {one.told_apart})"
    return shown(one.spearman) + alike


def orders(studies, model=MODEL):
    """Header and rows: rank correlation by task and budget, and pairs ordered alike."""
    tables = Tables(studies, model)
    rows = [[f"**all tasks, KL over {by}**",
             *(said(tables.order(ALL, budget, by)) for budget in tables.budgets)]
            for by in ("answers", "texts") if (tables.agreement.by == by).any()]
    rows += [[f"`{task}`", *(said(tables.order(task, budget, "answers"))
                             for budget in tables.budgets)] for task in tables.tasks]
    return ["task", *(f"{budget:g}" for budget in tables.budgets)], rows


def tried(studies, model=MODEL):
    """Header and rows: instances tried and answered right by the full cache."""
    tables = Tables(studies, model)
    rows = {}
    for one in tables.tried.itertuples():
        rows.setdefault(one.task, {})[one.question] = f"{one.solved} of {one.tried}"
    return (["task", "question known", "question unknown"],
            [[f"`{task}`", own.get("known", "-"), own.get("unknown", "-")]
             for task, own in rows.items()])


def draw(studies):
    """Accuracy by budget, and accuracy by KL of every policy and budget."""
    tables = Tables(studies)
    policies = tables.policies()
    cells = tables.of(ALL)
    named = tuple(one for one in NAMED if one in policies)
    looks = style.policy_looks(named)
    grey = {"color": "0.75", "linewidth": 0.9, "marker": "o", "markersize": 2}
    count = max(one.instances for one in cells.values())
    fig, axes = style.frame(
        "Does KL order policies as tasks do?", f"Free answers to {count // 2} prompts of nine tasks, each with "
        "the question known and unknown, that are right with the full cache. Bars: 95 % intervals. Grey: seven other "
        f"policies. Right: a point is a policy at a budget. {plan.MODEL}.", 1, 2, 3.0, (), ("", "right answers"))
    left, right = axes.flat
    ends = []
    for policy in [*(one for one in policies if one not in named), *named]:
        own = [cells[policy, budget] for budget in tables.budgets]
        mean = [one.accuracy for one in own]
        look = {**grey, **({**looks[policy], "linewidth": 1.3} if policy in named else {})}
        left.plot(tables.budgets, mean, **look)
        right.plot([one.kl for one in own], mean, **{**look, "linestyle": "none", "markersize": 3})
        if policy in named:
            left.errorbar(tables.budgets, mean, [[one.accuracy - one.low for one in own],
                                                 [one.high - one.accuracy for one in own]],
                          color=looks[policy]["color"], linestyle="none", linewidth=0.8)
            ends.append((tables.budgets[-1], mean[-1], policy, looks[policy]["color"]))
    left.set(xscale="log", xlabel="budget (share of the prompt kept)")
    left.set_xticks(tables.budgets, [f"{one:g}" for one in tables.budgets])
    left.minorticks_off()
    style.end_labels(left, ends)
    right.set(xscale="log", xlabel="KL over the full cache's answer, nats")
    style.log_ticks(right.xaxis)
    rank = statistics.spearman(*(pandas.Series([getattr(one, name) for one in cells.values()])
                                 .to_numpy() for name in ("accuracy", "kl")))
    right.set_title(f"rank correlation over all points: {rank:.2f}")
    return fig


def options(studies):
    """What `kvsim study` is given for the second model: the policies that the first had, and one found since."""
    policies = [*Tables(studies).policies(), set_aside.STREAM]
    return ["--texts", "none", "--tasks", SECOND_TASKS, "--instances", "20", "--budget", "0.1,0.2,0.5",
            *(word for one in policies for word in ("--policy", one))]


def main():
    parser = argparse.ArgumentParser(prog="tasks.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?")
    parser.add_argument("-o", "--out", default=Path("studies"), type=Path, metavar="STUDIES")
    parser.add_argument("--options", action="store_true")
    given = parser.parse_args()
    if given.options:
        print("\n".join(options(given.out)))
        return
    for name in FILES if given.folder else ():
        model = json.loads((given.folder / "study.json").read_text())["model"]
        shutil.copyfile(given.folder / name, place(given.out, model, name))
    style.use()
    style.save(draw(given.out), given.out / "tasks.png")
    print(given.out / "tasks.png")


if __name__ == "__main__":
    main()
