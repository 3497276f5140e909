"""The page of a study: one HTML file with the leaderboard, curves, every text, the worst steps. What stands where
is in page.html, a template of Jinja; what stands there comes from here."""

import io
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import matplotlib
import pandas
from markupsafe import Markup

from ..bytes_for_loss import by_policy
from ..errors import DataError
from ..plain import counted, csv_text
from ..plots import style
from ..tasks import TASKS
from ..whole import write_text
from . import benchmarks, table
from .folder import COLUMNS, Folder, merge
from .table import is_hindsight, number
from .tasks import answers, solved

LINES = 8       # policies that a figure draws: more cannot be told apart
WORST = 3       # steps of a policy and text
SHOWN_WORST = 6   # rows of a policy


def write(folder: Folder, reference: str | None = None, title: str | None = None, loss: float = 0.02) -> dict:
    """index.html and the tables of what is finished; paths by name."""
    losses, answered, asked = folder.losses(), answers(folder), benchmarks.outcomes(folder)
    tables, parts = {}, dict.fromkeys(("texts", "tasks", "benchmarks"))
    if not losses.empty:
        chosen = table.reference_of(losses, reference)
        tables |= {"losses.csv": losses, "leaderboard.csv": table.leaderboard(losses, chosen),
                   "texts.csv": folder.listed(),
                   "leaderboard_bytes.csv": table.leaderboard(table.at_bytes(losses, chosen), chosen),
                   "categories.csv": table.by_category(losses, chosen),
                   "least_bytes.csv": by_policy(losses, loss)}
        parts["texts"] = about_texts(folder, tables, chosen)
    if not answered.empty:
        tables |= {"answers.csv": answered, "accuracy.csv": table.accuracy(answered),
                   "agreement.csv": table.agreement(answered, losses), "tried.csv": solved(folder)}
        parts["tasks"] = about_tasks(*(tables[f"{one}.csv"] for one in ("accuracy", "agreement", "tried")))
    if not asked.empty:
        tables |= {"scores.csv": benchmarks.scores(asked), "score_tests.csv": benchmarks.score_tests(asked)}
        parts["benchmarks"] = list(about_benchmarks(tables["scores.csv"], tables["score_tests.csv"]))
    if not tables:
        return {}
    models = dict.fromkeys([*losses.model, *answered.model, *asked.model])
    paths = {name: folder.path / name for name in [*tables, "index.html"]}
    for one, rows in tables.items():
        write_text(paths[one], csv_text(rows))
    write_text(paths["index.html"], template().render(
        title=title or f"What {', '.join(models)} loses with a compressed KV cache",
        cells_of=cells_of, columns=COLUMNS, least_texts=table.LEAST_TEXTS, **parts))
    return paths


def template() -> jinja2.Template:
    """page.html, in which every text of a file is escaped."""
    page = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True,
                              trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    page.filters |= {
        "number": number, "digits": lambda value, count: f"{value:.{count}f}", "interval": table.interval,
        "budgets": table.budgets_of, "least_first": table.least_first, "best_first": table.best_first,
        "off_budget": table.off_budget, "shade": shade, "seen": seen,
        "ratio": lambda log: number(math.exp(log)),
        "best": lambda board: set(table.competing(board).groupby("budget").relative.idxmin()),
        "largest": lambda rows, value: set(rows.index[rows[value] == rows.groupby("budget")[value].transform("max")])}
    return page.get_template("page.html")


def join(studies: Iterable[str | os.PathLike], out: str | os.PathLike, *page: Any) -> Path:
    """One study of several, with its page, whose reference, title and loss `page` are."""
    target = Folder(out)
    with target.at_work():
        merge(studies, target)
        paths = write(target, *page)
    if not paths:
        raise DataError("no text or task of these studies is finished")
    return paths["index.html"]


def cells_of(rows: pandas.DataFrame, order: Iterable[str]) -> Iterator[tuple[str, list]]:
    """Policies in their order, each with its rows by budget; None where it has none."""
    return ((policy, cells) for policy, *cells in table.grid(rows, order, lambda one: one, None))


def shade(log: float) -> Markup:
    """Colour of a cell by the logarithm of a ratio: green is less, red is more."""
    if not math.isfinite(log):
        return Markup()
    depth = min(abs(log) / math.log(4), 1) * 0.45
    return Markup(f' style="background:rgba({"0,138,100" if log < 0 else "213,94,0"},{depth:.2f})"')


def seen(text: str) -> str:
    """Text of a token with line ends shown and control characters away."""
    return "".join("⏎" if one == "\n" else one if one.isprintable() or one == " " else "·" for one in text)


# ---- texts ----

def about_texts(folder: Folder, tables: dict[str, pandas.DataFrame], reference: str) -> SimpleNamespace:
    losses, board, held, listed = (tables[f"{name}.csv"] for name in (
        "losses", "leaderboard", "leaderboard_bytes", "texts"))
    evicts_later = table.held(losses) == "peak"   # then a budget is another number of bytes for some
    counts = losses.groupby("model").text.nunique()
    several = " and ".join(str(one) for one in dict.fromkeys(counts))
    worst = pandas.DataFrame(folder.worst_steps(WORST))
    return SimpleNamespace(
        reference=reference, models=[about_model(model, tables, reference) for model in losses.model.unique()],
        best=list(best_of(held if evicts_later else board)), budgets_of=" of the bytes" if evicts_later else "",
        counted=f"{several} text{'s' * (several != '1')}",
        worst=worst_steps(worst), worst_budget=None if worst.empty else worst.budget.iloc[0],
        listed=list(listed[listed.text.isin(losses.text)].drop_duplicates("text").itertuples()))


def best_of(board: pandas.DataFrame) -> Iterator[tuple[str, list]]:
    """Of each model the policies that lose least, with the budgets at which they do, and their losses."""
    for model, own in table.competing(board).groupby("model", sort=False):
        best = own.loc[own.groupby("budget", sort=False).relative.idxmin()]
        yield model, [(policy, list(zip(rows.budget, rows.relative)))
                      for policy, rows in best.groupby("policy", sort=False)]


def about_model(model: str, tables: dict[str, pandas.DataFrame], reference: str) -> SimpleNamespace:
    every = (tables[f"{name}.csv"] for name in (
        "losses", "leaderboard", "leaderboard_bytes", "categories", "least_bytes"))
    losses, board, held, categories, least = (one[one.model == model] for one in every)
    of = {"bytes": ", of the prompt", "peak": " at the end of the answer, since some policies evict later tokens, too"}
    texts = losses.text.nunique()
    order = least.assign(last=least.policy.map(is_hindsight)).sort_values(
        ["last", "bytes"], na_position="last", kind="stable")
    return SimpleNamespace(
        name=model, board=board, held=held, least=order, hold_others=hold_others(losses, reference),
        bytes_of=of[table.held(losses)], categories=list(categories.groupby("category")),
        every_text=list(every_text(losses, reference)),
        curves=curves(board, reference, texts, "budget (share of the prompt, or entries kept)"),
        curves_by_bytes=curves(held, reference, texts, "bytes held, share of the full cache's",
                               "Loss by bytes held", " at the same bytes"))


def hold_others(losses: pandas.DataFrame, reference: str) -> list[str]:
    """Policies that hold other bytes than the reference at a budget: those with scales, biases or slots beside
    entries more, those that quantise fewer."""
    wide = losses.pivot(index=["text", "budget"], columns="policy", values=table.held(losses))
    base = wide[reference] if reference in wide else math.nan
    apart = (wide.div(base, axis=0) - 1).abs().max() > table.SAME_BYTES
    return [policy for policy in losses.policy.unique() if apart[policy]]


def drawn(board: pandas.DataFrame, reference: str) -> list[str]:
    """Policies of a figure: the best ones, the reference, one oracle."""
    ranked = table.by_loss(board).sort_values(kind="stable").index
    oracles = [one for one in ranked if is_hindsight(one)][:1]
    chosen = [one for one in ranked if not is_hindsight(one)][: LINES - 2]
    return [*oracles, *chosen, *([reference] if reference not in chosen else [])]


def curves(board: pandas.DataFrame, reference: str, texts: int, label: str,
           title: str = "Loss by budget", at: str = "") -> Markup:
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
    style.over_budgets(axes.flat[0], sorted({at for _, at in cells}), policies, (best,),
                       lambda policy, at: cells.get((policy, at)))
    text = io.StringIO()
    style.settle(fig)
    fig.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    style.plt.close(fig)
    drawing = text.getvalue()
    return Markup(drawing[drawing.index("<svg"):])


def every_text(losses: pandas.DataFrame, reference: str) -> Iterator[tuple[str, list[str], list]]:
    """Of each budget the texts, and policies with the logarithms of their relative losses on them."""
    found = table.relative(losses, reference)
    for budget in table.budgets_of(found):
        own = found[found.budget == budget]
        wide = own.pivot(index="policy", columns="text", values="log")
        names = list(own.drop_duplicates("text").sort_values(["category", "text"]).text)
        ranked = sorted(wide.index, key=lambda one: (is_hindsight(one), wide.loc[one].mean()))
        yield budget, names, [(one, list(wide.loc[one, names])) for one in ranked]


def worst_steps(found: pandas.DataFrame) -> list[tuple[str, list]]:
    """Of each policy the tokens at which most is lost, with what came before them; hindsight last."""
    if found.empty:
        return []
    order = found.groupby("policy").kl.mean().sort_values(kind="stable").index
    return [(policy, found[found.policy == policy].nlargest(SHOWN_WORST, "kl").to_dict("records"))
            for policy in sorted(order, key=is_hindsight)]


# ---- tasks and benchmarks ----

def named(task: str) -> str:
    """A task with what it is."""
    return "all tasks" if task == table.ALL else f"{task}: {TASKS[task].meaning}" if task in TASKS else task


def about_tasks(right: pandas.DataFrame, agreement: pandas.DataFrame, tried: pandas.DataFrame) -> SimpleNamespace:
    models = [(model, own[(own.task == table.ALL) & (own.question == table.ALL)],
               [(named(task), question, rows) for (task, question), rows in
                own.groupby(["task", "question"], sort=False) if question != table.ALL])
              for model, own in right.groupby("model", sort=False)]
    return SimpleNamespace(models=models, tried=tried, orders=table.sorted_by(
        agreement[agreement.question == table.ALL], ["model", "by", "task", "budget"]))


def about_benchmarks(scores: pandas.DataFrame, tests: pandas.DataFrame) -> Iterator[tuple]:
    """Of each benchmark and way to ask: its scores over all tasks and by task, how many pairs of policies were
    compared, and those that differ."""
    keys = ["model", "benchmark", "question"]
    for names, own in scores.groupby(keys, sort=False):
        pairs = tests[(tests[keys] == names).all(axis=1)]
        apart = pairs[pairs.told_apart.astype(bool)]   # of one policy there are no pairs, and no type
        yield (*names, own[own.task == table.ALL],
               [one for one in own.groupby("task", sort=False) if one[0] != table.ALL], len(pairs), apart)
