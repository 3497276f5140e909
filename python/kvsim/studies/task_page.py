"""The part of a study's page about tasks."""

import html
import math

import pandas

from ..tasks import TASKS
from . import table
from .task_table import ALL


def named(task: str) -> str:
    """A task with what it is."""
    return "all tasks" if task == ALL else f"{task}: {TASKS[task].meaning}" if task in TASKS else task


def about_tasks(right: pandas.DataFrame, agreement: pandas.DataFrame,
                solved: pandas.DataFrame) -> list[str]:
    body = ["<h2>Tasks: does the answer stay right?</h2><p>The model answers freely with every "
            "compressed cache, greedily. Instances are those that it answers right with the full "
            "cache, so that the full cache has 1. In brackets: 95 % interval (Wilson).</p>"]
    for model, own in right.groupby("model", sort=False):
        if right.model.nunique() > 1:
            body.append(f"<h2>{html.escape(model)}</h2>")
        body += [accuracy_table(own[(own.task == ALL) & (own.question == ALL)])]
        body += [f"<details><summary>{html.escape(named(task))}; question {question}</summary>"
                 f"{accuracy_table(rows)}</details>"
                 for (task, question), rows in own.groupby(["task", "question"], sort=False)
                 if question != ALL]
    return [*body, orders(agreement), counted(solved)]


def about_benchmarks(scores: pandas.DataFrame, tests: pandas.DataFrame) -> list[str]:
    body = ["<h2>Benchmarks: scores of the answers</h2><p>The model answers every question of a file "
            "with every compressed cache, greedily, and the benchmark's own rule judges. In brackets: "
            "95 % interval (Wilson, questions of one prompt counted together).</p>"]
    keys = ["model", "benchmark", "question"]
    for (model, name, way), own in scores.groupby(keys, sort=False):
        every = own[own.task == ALL]
        body.append(f"<h2>{html.escape(model)}, {html.escape(name)}, question {way}</h2><p>"
                    f"{every.questions.max()} questions about {every.prompts.max()} prompts; the full "
                    f"cache has {every.full.max():.3f}.</p>{grid(every, 'score', 3)}")
        body += [f"<details><summary>{html.escape(task)}; full cache {rows.full.max():.3f}</summary>"
                 f"{grid(rows, 'score', 3)}</details>"
                 for task, rows in own.groupby("task", sort=False) if task != ALL]
        pairs = tests[(tests[keys] == (model, name, way)).all(axis=1)]
        apart = pairs[pairs.told_apart]
        lines = "".join(f"<tr><td><code>{html.escape(one.policy)}</code></td>"
                        f"<td><code>{html.escape(one.other)}</code></td><td>{html.escape(one.budget)}"
                        f"</td><td>{one.difference:+.3f}</td><td>{one.p:.2g}</td></tr>"
                        for one in apart.itertuples())
        body.append(f"<details><summary>{len(apart)} of {len(pairs)} pairs of policies differ (paired "
                    "over prompts, Holm's correction)</summary><div class=\"scroll\"><table><tr>"
                    "<th>policy</th><th>other</th><th>budget</th><th>difference</th><th>p</th></tr>"
                    f"{lines}</table></div></details>")
    return body


def accuracy_table(rows: pandas.DataFrame) -> str:
    return f"<p>{rows.instances.max()} instances.</p>{grid(rows, 'accuracy', 2)}"


def grid(rows: pandas.DataFrame, value: str, digits: int) -> str:
    """Policies by budgets: a value with its interval, the best of each budget in bold."""
    budgets = list(dict.fromkeys(rows.budget))
    cells = {(one.policy, one.budget): one for one in rows.itertuples()}
    best = rows.groupby("budget")[value].max()
    order = rows.groupby("policy")[value].mean().sort_values(ascending=False, kind="stable").index
    lines = []
    for policy in order:
        line = f"<td><code>{html.escape(policy)}</code></td>"
        for budget in budgets:
            one = cells.get((policy, budget))
            mark = ' class="best"' if one and getattr(one, value) == best[budget] else ""
            line += f"<td{mark}>" + (f"{getattr(one, value):.{digits}f} [{one.low:.2f}, "
                                     f"{one.high:.2f}]" if one else "–") + "</td>"
        lines.append(f"<tr>{line}</tr>")
    head = "".join(f"<th>{html.escape(one)}</th>" for one in budgets)
    return ('<div class="scroll"><table><tr><th>policy \\ budget</th>'
            f"{head}</tr>{''.join(lines)}</table></div>")


def orders(agreement: pandas.DataFrame) -> str:
    """Does the loss order policies as the tasks do?"""
    rows = []
    for one in agreement[(agreement.question == ALL)].sort_values(
            ["model", "by", "task", "budget"], key=lambda found: found.map(table.budget_key)
            if found.name == "budget" else found, kind="stable").itertuples():
        alike = "–" if math.isnan(one.alike) else f"{100 * one.alike:.0f} % of {one.told_apart}"
        rank = "–" if math.isnan(one.spearman) else f"{one.spearman:.2f}"
        rows.append(f"<tr><td>{html.escape(one.task)}</td><td>{html.escape(one.budget)}</td>"
                    f"<td>{one.by}</td><td>{rank}</td><td>{alike}</td></tr>")
    if not rows:
        return ""
    return ("<h2>Does KL order policies as tasks do?</h2><p>Spearman's rank correlation of accuracy "
            "with less loss, over policies. Of pairs of policies that the task tells apart: the share "
            "of which the one with less loss answers more right. Loss over the answers of the tasks, "
            "or over the texts of this study.</p><details><summary>by task and budget</summary>"
            '<div class="scroll"><table><tr><th>task</th><th>budget</th><th>loss over</th>'
            f"<th>Spearman</th><th>same order</th></tr>{''.join(rows)}</table></div></details>")


def counted(solved: pandas.DataFrame) -> str:
    rows = "".join(f"<tr><td>{html.escape(one.task)}</td><td>{one.question}</td><td>{one.tried}</td>"
                   f"<td>{one.solved}</td></tr>" for one in solved.itertuples())
    return ("<details><summary>instances tried, and answered right with the full cache</summary>"
            "<table><tr><th>task</th><th>question</th><th>tried</th><th>right</th></tr>"
            f"{rows}</table></details>")
