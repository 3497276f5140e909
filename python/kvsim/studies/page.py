"""The page of a study: one HTML file with the leaderboard, curves, every text, the worst steps."""

import io
import math
import os
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import matplotlib
import pandas

from ..bytes_for_loss import by_policy
from ..errors import DataError
from ..plain import counted, csv_text
from ..plots import lines, style
from ..tasks import TASKS
from ..whole import write_text
from . import benchmarks, table
from .folder import COLUMNS, Folder, merge
from .table import is_hindsight, number
from .tasks import answers, solved

LINES = 8       # policies that a figure draws: more cannot be told apart
WORST = 3       # steps of a policy and text
SHOWN_WORST = 6   # rows of a policy


def write(folder: Folder, reference: str | None = None, title: str | None = None,
          loss: float = 0.02) -> dict:
    """index.html and the tables of what is finished; paths by name."""
    losses, answered = folder.losses(), answers(folder)
    tables, body = {}, []
    if not losses.empty:
        chosen = table.reference_of(losses, reference)
        board = table.leaderboard(losses, chosen)
        tables |= {"losses.csv": losses, "leaderboard.csv": board, "texts.csv": folder.listed(),
                   "leaderboard_bytes.csv": table.leaderboard(table.at_bytes(losses, chosen), chosen),
                   "categories.csv": table.by_category(losses, chosen),
                   "least_bytes.csv": by_policy(losses, loss)}
        body += about_texts(folder, tables, chosen)
    if not answered.empty:
        right = table.accuracy(answered)
        agreement = table.agreement(answered, losses)
        tables |= {"answers.csv": answered, "accuracy.csv": right, "agreement.csv": agreement,
                   "tried.csv": solved(folder)}
        body += about_tasks(right, agreement, tables["tried.csv"])
    asked = benchmarks.outcomes(folder)
    if not asked.empty:
        tables |= {"scores.csv": benchmarks.scores(asked),
                   "score_tests.csv": benchmarks.score_tests(asked)}
        body += about_benchmarks(tables["scores.csv"], tables["score_tests.csv"])
    if not tables:
        return {}
    models = dict.fromkeys([*losses.model, *answered.model, *asked.model])
    name = title or f"What {', '.join(models)} loses with a compressed KV cache"
    paths = {name: folder.path / name for name in [*tables, "index.html"]}
    for one, rows in tables.items():
        write_text(paths[one], csv_text(rows))
    page = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    write_text(paths["index.html"], page.substitute(title=escape(name), body="\n".join(body)))
    return paths


def join(studies: Iterable[str | os.PathLike], out: str | os.PathLike, *page: Any) -> Path:
    """One study of several, with its page, whose reference, title and loss `page` are."""
    target = Folder(out)
    with target.at_work():
        merge(studies, target)
        paths = write(target, *page)
    if not paths:
        raise DataError("no text or task of these studies is finished")
    return paths["index.html"]


def about_texts(folder: Folder, tables: dict[str, pandas.DataFrame], reference: str) -> list[str]:
    names = ("losses.csv", "leaderboard.csv", "leaderboard_bytes.csv", "categories.csv", "least_bytes.csv")
    losses, board, held, *_ = (tables[name] for name in names)
    evicts_later = table.held(losses) == "peak"   # then a budget is another number of bytes for some
    body = [verdict(losses, held, reference, " of the bytes") if evicts_later
            else verdict(losses, board, reference)]
    for model in losses.model.unique():
        own, board, held, categories, least = (
            tables[name][tables[name].model == model] for name in names)
        if losses.model.nunique() > 1:
            body.append(f"<h2>{escape(model)}</h2>")
        body += [f"<h2>Leaderboard: loss relative to {code(reference)}</h2>"
                 f"<p>Geometric mean over texts, 95 % interval over texts (from {table.LEAST_TEXTS} "
                 "texts on). Oracles know the future and come last. A policy that holds over a twentieth more "
                 "of the bytes than the budget gives (&gt;) or less (&lt;) is not compared there. Hold the mouse over a cell for its "
                 "worst text, nats and bytes.</p>",
                 leaderboard(board, reference, "budget"),
                 curves(board, reference, own.text.nunique(), "budget (share of the prompt, or entries kept)"),
                 by_bytes(own, held, reference), least_bytes(least), "<h2>Every text</h2>",
                 every_text(own, reference), *each_category(categories, reference)]
    return [*body, worst_steps(folder), method(tables["texts.csv"], losses)]


def code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def fold(summary: str, body: str, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>{body}</details>"


def rows_of(head: Iterable[str], rows: Iterable[Iterable[Any]], reference: str = "") -> str:
    """A table whose cells are HTML; one that begins as a cell stands as it is. The row that begins with
    `reference` is shaded."""
    def cells(of: Iterable[Any], kind: str) -> str:
        return "".join(one if str(one).startswith(f"<{kind}") else f"<{kind}>{one}</{kind}>"
                       for one in of)

    shaded = '<tr class="reference">'
    lines = "".join((shaded if reference and row[0] == reference else "<tr>") + cells(row, "td")
                    + "</tr>" for row in map(tuple, rows))
    top = f"<tr>{cells(head, 'th')}</tr>" if head else ""
    return f'<div class="scroll"><table>{top}{lines}</table></div>'


def listed(summary: str, rows: pandas.DataFrame, **heads: str) -> str:
    """Some columns of a table below their heads, folded up where there is a summary."""
    def cell(name: str, value: Any) -> str:
        if isinstance(value, float):
            return number(value)
        return code(value) if name in ("policy", "other") else escape(str(value))

    told = rows_of(heads.values(), (map(cell, heads, one) for one in
                                    rows[list(heads)].itertuples(index=False)))
    return fold(summary, told) if summary else told


def grid(rows: pandas.DataFrame, policies: Iterable[str], cell: Callable[[Any], str], across: str = "budget",
         reference: str = "") -> str:
    """Policies by budgets; `cell` of a row."""
    return rows_of((f"policy \\ {across}", *map(escape, table.budgets_of(rows))), (
        (code(policy), *cells) for policy, *cells in table.grid(rows, policies, cell)),
        reference and code(reference))


def verdict(losses: pandas.DataFrame, board: pandas.DataFrame, reference: str, of: str = "") -> str:
    """The best at each budget, in one sentence for each model. `of`: what budgets are shares of."""
    said = []
    for model, own in table.competing(board).groupby("model", sort=False):
        best = own.loc[own.groupby("budget", sort=False).relative.idxmin()]
        words = "; ".join(
            f"<b>{code(policy)}</b> at "
            + ", ".join(f"{one.budget}{of} ({number(one.relative)})" for one in rows.itertuples())
            for policy, rows in best.groupby("policy", sort=False))
        said.append(f"<p>{escape(model)} loses least with {words}. In brackets: its loss "
                    f"relative to {code(reference)}.</p>")
    texts = losses[["model", "text"]].drop_duplicates().groupby("model").size()
    count = " and ".join(str(one) for one in dict.fromkeys(texts))
    return "".join(said) + (f"<p>{count} text{'s' * (count != '1')}; loss is the KL divergence of the model's next-token "
                            "distribution from that with the full cache. Lower is better.</p>")


def leaderboard(board: pandas.DataFrame, reference: str, across: str) -> str:
    """A table of policies by budget, or by what else `across` says the columns are."""
    best = table.competing(board).groupby("budget").relative.min()

    def cell(one) -> str:
        off = table.off_budget(one.held)
        mark = ' class="best"' if not off and one.relative == best.get(one.budget) else ""
        return (f'<td{mark} title="worst text {escape(str(one.worst_text))}: {number(one.worst)}; '
                f'{number(one.kl)} nats; {number(one.bytes)} of the bytes, {number(one.held)} times '
                f'what the budget gives">{number(one.relative)}{escape(off)}{table.interval(one)}</td>')

    return grid(board, table.least_first(board), cell, across, reference)


def drawn(board: pandas.DataFrame, reference: str) -> list[str]:
    """Policies of a figure: the best ones, the reference, one oracle."""
    ranked = table.by_loss(board).sort_values(kind="stable").index
    oracles = [one for one in ranked if is_hindsight(one)][:1]
    chosen = [one for one in ranked if not is_hindsight(one)][: LINES - 2]
    return [*oracles, *chosen, *([reference] if reference not in chosen else [])]


def curves(board: pandas.DataFrame, reference: str, texts: int, label: str,
           title: str = "Loss by budget", at: str = "") -> str:
    """A line per policy over budgets, the band of the best one, as SVG."""
    style.use()
    matplotlib.rcParams["svg.hashsalt"] = title   # the same study gives the same page; ids do not meet
    policies = drawn(board, reference)
    cells = {(one.policy, table.budget_key(one.budget)): (one.relative, one.low, one.high)
             for one in board.itertuples()}
    fig, axes = style.frame(
        title, f"KL divergence relative to {reference}{at}; geometric mean over {counted(texts, 'text')}; "
        "band: 95 % interval of the best", 1, 1, 3.0, (), (label, f"loss relative to {reference} (log scale)"))
    best = policies[1 if is_hindsight(policies[0]) else 0]
    lines.over_budgets(axes.flat[0], sorted({at for _, at in cells}), policies, (best,),
                       lambda policy, at: cells.get((policy, at)))
    text = io.StringIO()
    style.settle(fig)
    fig.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    style.close(fig)
    drawing = text.getvalue()
    return f'<div class="scroll">{drawing[drawing.index("<svg"):]}</div>'


def by_bytes(losses: pandas.DataFrame, held: pandas.DataFrame, reference: str) -> str:
    """Policies that hold scales, biases or slots beside entries hold more bytes than their budget,
    those that quantise fewer."""
    column = table.held(losses)
    of = {"bytes": "the full cache's bytes, of the prompt",
          "peak": "the full cache's bytes at the end of the answer, since some policies evict later "
                  "tokens, too"}[column]
    wide = losses.pivot(index=["text", "budget"], columns="policy", values=column)
    base = wide[reference] if reference in wide else math.nan
    apart = (wide.div(base, axis=0) - 1).abs().max() > table.SAME_BYTES
    others = [policy for policy in losses.policy.unique() if apart[policy]]
    said = ("At the same budget these hold other bytes: " + ", ".join(map(code, others)) + "." if others else
            "All policies hold the same bytes at the same budget: this says what the first one says.")
    return (f"<h2>Leaderboard by bytes held</h2><p>{said} Columns are shares of {of}. Between"
            " a policy's own points its loss is interpolated (linear in the logarithms).</p>"
            + fold("table and figure", leaderboard(held, reference, "bytes") + curves(
                held, reference, losses.text.nunique(), "bytes held, share of the full cache's",
                "Loss by bytes held", " at the same bytes"), bool(others)))


def each_category(boards: pandas.DataFrame, reference: str) -> list[str]:
    """The leaderboard of every category, where there are several."""
    if boards.category.nunique() < 2:
        return []
    return ["<h2>Every category of texts</h2>", *(
        fold(f"{escape(category)}: {own.texts.max()} texts", leaderboard(own, reference, "budget"))
        for category, own in boards.groupby("category"))]


def least_bytes(least: pandas.DataFrame) -> str:
    """Holding that each policy needs for one loss, the least first."""
    order = least.assign(last=least.policy.map(is_hindsight)).sort_values(
        ["last", "bytes"], na_position="last", kind="stable")
    return (f"<h2>The least bytes for a loss of {least.loss.iloc[0]:g} nats</h2>"
            "<p>Share of the full cache's bytes, median over texts, between budgets by lines in "
            "logarithms. A dash: on half of the texts or more no budget comes so low.</p>"
            + listed("", order, policy="policy", bytes="bytes", reached="reached on", texts="of texts"))


def every_text(losses: pandas.DataFrame, reference: str) -> str:
    found = table.relative(losses, reference)
    parts = ["<p>Loss relative to the reference; green is less, red is more.</p>"]
    for budget in table.budgets_of(found):
        own = found[found.budget == budget]
        wide = own.pivot(index="policy", columns="text", values="log")
        order = own.drop_duplicates("text").sort_values(["category", "text"]).text
        ranked = sorted(wide.index, key=lambda one: (is_hindsight(one), wide.loc[one].mean()))
        parts.append(fold(f"budget {escape(budget)}", rows_of(
            ("policy \\ text", *map(escape, order)),
            ((code(one), *map(_shaded, wide.loc[one, order])) for one in ranked))))
    return "".join(parts)


def _shaded(log: float) -> str:
    if not math.isfinite(log):
        return "<td>–</td>"
    depth = min(abs(log) / math.log(4), 1) * 0.45
    colour = "0,138,100" if log < 0 else "213,94,0"
    return f'<td style="background:rgba({colour},{depth:.2f})">{number(math.exp(log))}</td>'


def worst_steps(folder: Folder) -> str:
    """The tokens at which most is lost, with what came before them."""
    found = pandas.DataFrame(folder.worst_steps(WORST))
    if found.empty:
        return ""
    order = found.groupby("policy").kl.mean().sort_values(kind="stable").index
    head = ("text", "nats", '<th style="text-align:left">token after which the prediction is worst</th>')
    parts = [fold(code(policy), rows_of(head, (
        (escape(one.text), number(one.kl), f'<td class="text">{_seen(one.before)}<mark>'
         f"{_seen(one.token)}</mark>{_seen(one.next)}</td>")
        for one in found[found.policy == policy].nlargest(SHOWN_WORST, "kl").itertuples())), not place)
        for place, policy in enumerate(sorted(order, key=is_hindsight))]
    return (f"<h2>Worst steps</h2><p>At budget {escape(str(found.budget.iloc[0]))}: the marked "
            "token is read, and the prediction of the next one is furthest from the full cache's."
            "</p>" + "".join(parts))


def _seen(text: str) -> str:
    """Text of a token with line ends shown and control characters away."""
    shown = "".join("⏎" if one == "\n" else one if one.isprintable() or one == " " else "·"
                    for one in text)
    return escape(shown)


def method(texts: pandas.DataFrame, losses: pandas.DataFrame) -> str:
    """How it was measured, and where every text that has a loss comes from."""
    texts = texts[texts.text.isin(losses.text)].drop_duplicates("text")
    listed = rows_of(("text", "category", "prompt", "later", "from", "SHA-256"), (
        (escape(one.text), escape(one.category), one.prompt_tokens, one.later_tokens,
         f'<td class="text">{escape(one.origin)}</td>', code(one.sha256[:12]))
        for one in texts.itertuples()))
    meanings = rows_of((), ((code(name), '<td style="text-align:left;white-space:normal">'
                             f"{escape(what)}</td>") for name, what in COLUMNS.items()))
    return ("<h2>How it was measured</h2><p>The prompt runs once with the full cache; each policy "
            "then chooses what to keep. The later tokens run with what was kept, tokens forced. "
            "Intervals are Student's t over the logarithms of texts.</p>"
            + fold("texts", listed) + fold("columns of losses.csv", meanings))


# ---- tasks and benchmarks ----

def named(task: str) -> str:
    """A task with what it is."""
    return "all tasks" if task == table.ALL else f"{task}: {TASKS[task].meaning}" if task in TASKS else task


def about_tasks(right: pandas.DataFrame, agreement: pandas.DataFrame,
                solved: pandas.DataFrame) -> list[str]:
    body = ["<h2>Tasks: does the answer stay right?</h2><p>The model answers freely with every "
            "compressed cache, greedily. Instances are those that it answers right with the full "
            "cache, so that the full cache has 1. In brackets: 95 % interval (Wilson).</p>"]
    for model, own in right.groupby("model", sort=False):
        if right.model.nunique() > 1:
            body.append(f"<h2>{escape(model)}</h2>")
        body += [accuracy_table(own[(own.task == table.ALL) & (own.question == table.ALL)])]
        body += [fold(f"{escape(named(task))}; question {question}", accuracy_table(rows))
                 for (task, question), rows in own.groupby(["task", "question"], sort=False)
                 if question != table.ALL]
    orders = table.sorted_by(agreement[agreement.question == table.ALL], ["model", "by", "task", "budget"])
    if len(orders):
        body += ["<h2>Does KL order policies as tasks do?</h2><p>Spearman's rank correlation of accuracy "
                 "with less loss, over policies. Of pairs of policies that the task tells apart: the share "
                 "of which the one with less loss answers more right. Loss over the answers of the tasks, "
                 "or over the texts of this study.</p>",
                 listed("by task and budget", orders, task="task", budget="budget", by="loss over",
                        spearman="Spearman", told_apart="told apart", alike="same order")]
    return [*body, listed("instances tried, and answered right with the full cache", solved,
                          task="task", question="question", tried="tried", solved="right")]


def about_benchmarks(scores: pandas.DataFrame, tests: pandas.DataFrame) -> list[str]:
    body = ["<h2>Benchmarks: scores of the answers</h2><p>The model answers every question of a file "
            "with every compressed cache, greedily, and the benchmark's own rule judges. In brackets: "
            "95 % interval (Wilson, questions of one prompt counted together).</p>"]
    keys = ["model", "benchmark", "question"]
    for (model, name, way), own in scores.groupby(keys, sort=False):
        every = own[own.task == table.ALL]
        body.append(f"<h2>{escape(model)}, {escape(name)}, question {way}</h2><p>"
                    f"{every.questions.max()} questions about {every.prompts.max()} prompts; the full "
                    f"cache has {every.full.max():.3f}.</p>{means(every, 'score', 3)}")
        body += [fold(f"{escape(task)}; full cache {rows.full.max():.3f}", means(rows, "score", 3))
                 for task, rows in own.groupby("task", sort=False) if task != table.ALL]
        pairs = tests[(tests[keys] == (model, name, way)).all(axis=1)]
        apart = pairs[pairs.told_apart.astype(bool)]   # of one policy there are no pairs, and no type
        body.append(listed(
            f"{len(apart)} of {len(pairs)} pairs of policies differ (paired over prompts, Holm's correction)",
            apart, policy="policy", other="other", budget="budget", difference="difference", p="p"))
    return body


def accuracy_table(rows: pandas.DataFrame) -> str:
    return f"<p>{rows.instances.max()} instances.</p>{means(rows, 'accuracy', 2)}"


def means(rows: pandas.DataFrame, value: str, digits: int) -> str:
    """Policies by budgets: a value with its interval, the best of each budget in bold."""
    best = rows.groupby("budget")[value].max()

    def cell(one) -> str:
        mark = ' class="best"' if getattr(one, value) == best[one.budget] else ""
        return f"<td{mark}>{getattr(one, value):.{digits}f} [{one.low:.2f}, {one.high:.2f}]</td>"

    return grid(rows, table.best_first(rows, value), cell)
