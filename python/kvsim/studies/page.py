"""The page of a study: one HTML file with the leaderboard, curves, every text, the worst steps."""

import html
import io
import math
from string import Template

import pandas

from ..bytes_for_loss import by_policy
from ..plain import counted
from ..plots import lines, style
from . import benchmarks, table, task_page, task_table
from ..whole import write_text
from .folder import COLUMNS, Folder
from .tasks import answers, solved

LINES = 8       # policies that a figure draws: more cannot be told apart
WORST = 3       # steps of a policy and text
SHOWN_WORST = 6   # rows of a policy
HINDSIGHT = "oracle"   # begins the names of policies that know the future

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>$title</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 1.5rem auto; padding: 0 1rem;
  color: #1c1e21; background: #fff }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem }
p { max-width: 44rem; margin: .4rem 0 } .scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums }
th, td { padding: .18rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e6e9 }
th:first-child, td:first-child { text-align: left } th { vertical-align: bottom }
td.text { text-align: left; white-space: pre-wrap; font-family: ui-monospace, monospace }
tr.reference td { background: #f3f4f6 } .best { font-weight: 600 }
svg { width: 100%; min-width: 42rem; max-width: 54rem; height: auto; margin-top: 1.5rem } summary { cursor: pointer; margin: .5rem 0 }
mark { background: #ffe08a } code { font-size: .9em }
</style></head><body>
<h1>$title</h1>
$body
</body></html>
""")


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
        right = task_table.accuracy(answered)
        agreement = task_table.agreement(answered, losses)
        tables |= {"answers.csv": answered, "accuracy.csv": right, "agreement.csv": agreement,
                   "tried.csv": solved(folder)}
        body += task_page.about_tasks(right, agreement, tables["tried.csv"])
    asked = benchmarks.outcomes(folder)
    if not asked.empty:
        tables |= {"scores.csv": benchmarks.scores(asked),
                   "score_tests.csv": benchmarks.score_tests(asked)}
        body += task_page.about_benchmarks(tables["scores.csv"], tables["score_tests.csv"])
    if not tables:
        return {}
    models = dict.fromkeys([*losses.model, *answered.model, *asked.model])
    name = title or f"What {', '.join(models)} loses with a compressed KV cache"
    paths = {name: folder.path / name for name in [*tables, "index.html"]}
    for one, rows in tables.items():
        write_text(paths[one], table.safe_csv(rows))
    write_text(paths["index.html"], PAGE.substitute(title=html.escape(name), body="\n".join(body)))
    return paths


def about_texts(folder: Folder, tables: dict[str, pandas.DataFrame], reference: str) -> list[str]:
    losses = tables["losses.csv"]
    models = list(dict.fromkeys(losses.model))
    evicts_later = table.held(losses) == "peak"   # then a budget is another number of bytes for some
    body = [verdict(losses, tables["leaderboard_bytes.csv"], reference, " of the bytes")
            if evicts_later else verdict(losses, tables["leaderboard.csv"], reference)]
    for model in models:
        own, board, held, categories, least = (one[one.model == model] for one in (
            losses, *(tables[name] for name in ("leaderboard.csv", "leaderboard_bytes.csv",
                                                "categories.csv", "least_bytes.csv"))))
        if len(models) > 1:
            body.append(f"<h2>{html.escape(model)}</h2>")
        texts = len(set(own.text))
        body += [f"<h2>Leaderboard: loss relative to <code>{html.escape(reference)}</code></h2>"
                 f"<p>Geometric mean over texts, 95 % interval over texts (from {table.LEAST_TEXTS} "
                 "texts on). Oracles know the future and come last. A policy that holds over a twentieth more "
                 "of the bytes than the budget gives (&gt;) or less (&lt;) is not compared there. Hold the mouse over a cell for its "
                 "worst text, nats and bytes.</p>",
                 leaderboard(board, reference, "budget"), curves(board, reference, texts),
                 by_bytes(own, held, reference, texts), least_bytes(least), "<h2>Every text</h2>",
                 every_text(own, reference), *each_category(categories, reference)]
    return [*body, orders(losses, reference), worst_steps(folder),
            method(tables["texts.csv"], losses)]


def is_hindsight(policy: str) -> bool:
    """Oracles know the future: a floor, no competitor."""
    return policy.startswith(HINDSIGHT)


def number(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    if value >= 100 or value == 0:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def verdict(losses: pandas.DataFrame, board: pandas.DataFrame, reference: str, of: str = "") -> str:
    """The best at each budget, in one sentence for each model. `of`: what budgets are shares of."""
    said = []
    for model, own in table.competing(board[~board.policy.map(is_hindsight)]).groupby(
            "model", sort=False):
        best = own.loc[own.groupby("budget", sort=False).relative.idxmin()]
        words = "; ".join(
            f"<b><code>{html.escape(policy)}</code></b> at "
            + ", ".join(f"{one.budget}{of} ({number(one.relative)})" for one in rows.itertuples())
            for policy, rows in best.groupby("policy", sort=False))
        said.append(f"<p>{html.escape(model)} loses least with {words}. In brackets: its loss "
                    f"relative to <code>{html.escape(reference)}</code>.</p>")
    texts = losses[["model", "text"]].drop_duplicates().groupby("model").size()
    count = " and ".join(str(one) for one in dict.fromkeys(texts))
    return "".join(said) + (f"<p>{count} text{'s' * (count != '1')}; loss is the KL divergence of the model's next-token "
                            "distribution from that with the full cache. Lower is better.</p>")


def leaderboard(board: pandas.DataFrame, reference: str, across: str) -> str:
    """A table of policies by budget, or by what else `across` says the columns are."""
    budgets = sorted(set(board.budget), key=table.budget_key)
    cells = board.set_index(["policy", "budget"])
    order = board.assign(log=board.relative.map(math.log)).groupby("policy").log.mean()
    competing = table.competing(board[~board.policy.map(is_hindsight)])
    there = set(competing.policy)
    ranked = sorted(order.index, key=lambda one: (is_hindsight(one), one not in there, order[one]))
    best = {b: competing[competing.budget == b].relative.min() for b in budgets}
    head = "".join(f"<th>{html.escape(b)}</th>" for b in budgets)
    rows = []
    for policy in ranked:
        line = f"<td><code>{html.escape(policy)}</code></td>"
        for b in budgets:
            if (policy, b) not in cells.index:
                line += "<td>–</td>"
                continue
            one = cells.loc[(policy, b)]
            off = table.off_budget(one.held)
            mark = ' class="best"' if not off and one.relative == best[b] else ""
            spread = f" [{number(one.low)}, {number(one.high)}]" if math.isfinite(one.low) else ""
            line += (f'<td{mark} title="worst text {html.escape(str(one.worst_text))}: '
                     f'{number(one.worst)}; {number(one.kl)} nats; {number(one.bytes)} of the '
                     f'bytes, {number(one.held)} times what the budget gives">'
                     f'{number(one.relative)}{html.escape(off)}{spread}</td>')
        kind = ' class="reference"' if policy == reference else ""
        rows.append(f"<tr{kind}>{line}</tr>")
    return (f'<div class="scroll"><table><tr><th>policy \\ {across}</th>{head}</tr>'
            f"{''.join(rows)}</table></div>")


def drawn(board: pandas.DataFrame, reference: str) -> list[str]:
    """Policies of a figure: the best ones, the reference, one oracle."""
    order = board.assign(log=board.relative.map(math.log)).groupby("policy").log.mean()
    ranked = sorted(order.index, key=lambda one: order[one])
    oracles = [one for one in ranked if is_hindsight(one)][:1]
    others = [one for one in ranked if not is_hindsight(one)]
    chosen = others[: LINES - 2]
    return [*oracles, *chosen, *([reference] if reference not in chosen else [])]


def _svg(figure) -> str:
    """A figure as it stands in the page; ids of several do not meet."""
    import matplotlib.pyplot as plt

    text = io.StringIO()
    style.settle(figure)
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    drawing = text.getvalue()
    return f'<div class="scroll">{drawing[drawing.index("<svg"):]}</div>'


def _lines(board: pandas.DataFrame, reference: str, title: str, subtitle: str, label: str) -> str:
    """A line per policy over budgets, the band of the best one."""
    style.use()
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = title   # the same study gives the same page
    policies = drawn(board, reference)
    cells = {(one.policy, table.budget_key(one.budget)): (one.relative, one.low, one.high)
             for one in board.itertuples()}
    fig, axes = style.frame(title, subtitle, 1, 1, 3.0, (),
                            (label, f"loss relative to {reference} (log scale)"))
    best = policies[1 if is_hindsight(policies[0]) else 0]
    lines.over_budgets(axes.flat[0], sorted({at for _, at in cells}), policies, (best,),
                       lambda policy, at: cells.get((policy, at)))
    return _svg(fig)


def curves(board: pandas.DataFrame, reference: str, texts: int) -> str:
    return _lines(board, reference, "Loss by budget",
                  f"KL divergence relative to {reference}; geometric mean over {counted(texts, 'text')}; band: "
                  "95 % interval of the best", "budget (share of the prompt, or entries kept)")


def by_bytes(losses: pandas.DataFrame, held: pandas.DataFrame, reference: str, texts: int) -> str:
    """Policies that hold scales, biases or slots beside entries hold more bytes than their budget,
    those that quantise fewer."""
    column = table.held(losses)
    base = losses[losses.policy == reference].set_index(["text", "budget"])[column]
    ratio = losses[column] / base.reindex(pandas.MultiIndex.from_frame(losses[["text", "budget"]])).values
    others = [policy for policy, own in ratio.groupby(losses.policy, sort=False)
              if (own - 1).abs().max() > table.SAME_BYTES]
    said = ("All policies hold the same bytes at the same budget: this says what the first one says."
            if not others else "At the same budget these hold other bytes: " + ", ".join(
                f"<code>{html.escape(one)}</code>" for one in others) + ".")
    of = {"bytes": "the full cache's bytes, of the prompt",
          "peak": "the full cache's bytes at the end of the answer, since some policies evict later "
                  "tokens, too"}[column]
    return (f"<h2>Leaderboard by bytes held</h2><p>{said} Columns are shares of {of}. Between"
            " a policy's own points its loss is interpolated (linear in the logarithms).</p>"
            f"<details{' open' if others else ''}><summary>table and figure</summary>"
            + leaderboard(held, reference, "bytes")
            + _lines(held, reference, "Loss by bytes held",
                     f"KL divergence relative to {reference} at the same bytes; geometric mean over "
                     f"{counted(texts, 'text')}; band: 95 % interval of the best",
                     "bytes held, share of the full cache's") + "</details>")


def each_category(boards: pandas.DataFrame, reference: str) -> list[str]:
    """The leaderboard of every category, where there are several."""
    if boards.category.nunique() < 2:
        return []
    return ["<h2>Every category of texts</h2>", *(
        f"<details><summary>{html.escape(category)}: {own.texts.max()} texts</summary>"
        f"{leaderboard(own, reference, 'budget')}</details>"
        for category, own in boards.groupby("category"))]


def least_bytes(least: pandas.DataFrame) -> str:
    """Holding that each policy needs for one loss, the least first."""
    order = least.assign(last=least.policy.map(is_hindsight)).sort_values(
        ["last", "bytes"], na_position="last", kind="stable")
    rows = "".join(
        f"<tr><td><code>{html.escape(one.policy)}</code></td><td>{number(one.bytes)}</td>"
        f"<td>{one.reached} of {one.texts}</td></tr>" for one in order.itertuples())
    return (f"<h2>The least bytes for a loss of {least.loss.iloc[0]:g} nats</h2>"
            "<p>Share of the full cache's bytes, median over texts, between budgets by lines in "
            "logarithms. A dash: on half of the texts or more no budget comes so low.</p>"
            '<div class="scroll"><table><tr><th>policy</th><th>bytes</th><th>texts</th></tr>'
            f"{rows}</table></div>")


def every_text(losses: pandas.DataFrame, reference: str) -> str:
    found = table.relative(losses, reference)
    parts = []
    for budget in sorted(set(found.budget), key=table.budget_key):
        own = found[found.budget == budget]
        wide = own.pivot(index="policy", columns="text", values="log")
        order = own.drop_duplicates("text").sort_values(["category", "text"]).text
        wide = wide.loc[sorted(wide.index, key=lambda one: (is_hindsight(one),
                                                            wide.loc[one].mean())), order]
        head = "".join(f"<th>{html.escape(one)}</th>" for one in order)
        rows = "".join(
            f"<tr><td><code>{html.escape(policy)}</code></td>"
            + "".join(_shaded(value) for value in wide.loc[policy]) + "</tr>"
            for policy in wide.index)
        parts.append(f"<details><summary>budget {html.escape(budget)}</summary>"
                     f'<div class="scroll"><table><tr><th>policy \\ text</th>{head}</tr>{rows}'
                     "</table></div></details>")
    return ("<p>Loss relative to the reference; green is less, red is more.</p>" + "".join(parts))


def _shaded(log: float) -> str:
    if not math.isfinite(log):
        return "<td>–</td>"
    depth = min(abs(log) / math.log(4), 1) * 0.45
    colour = "0,138,100" if log < 0 else "213,94,0"
    return f'<td style="background:rgba({colour},{depth:.2f})">{number(math.exp(log))}</td>'


def orders(losses: pandas.DataFrame, reference: str) -> str:
    """Do texts that people wrote order policies as the others do?"""
    found = table.ranks_by_category(losses, reference)
    if found.empty or len(set(losses.policy)) < 3:
        return ""
    rows = "".join(
        f"<tr><td>{html.escape(one.category)}; {html.escape(one.other)}</td>"
        f"<td>{html.escape(one.budget)}</td><td>{number(one.spearman)}</td><td>{one.policies}</td>"
        "</tr>" for one in found.itertuples())
    return ("<h2>Do categories of texts agree on the order?</h2><p>Spearman's rank correlation of "
            "the policies' geometric means: 1 is the same order.</p>"
            '<div class="scroll"><table><tr><th>categories</th><th>budget</th><th>Spearman</th>'
            f"<th>policies</th></tr>{rows}</table></div>")


def worst_steps(folder: Folder) -> str:
    """The tokens at which most is lost, with what came before them."""
    found = pandas.DataFrame(folder.worst_steps(WORST))
    if found.empty:
        return ""
    parts = []
    order = found.groupby("policy").kl.mean().sort_values(kind="stable").index
    for policy in sorted(order, key=is_hindsight):
        own = found[found.policy == policy]
        rows = "".join(
            f"<tr><td>{html.escape(one.text)}</td><td>{number(one.kl)}</td>"
            f'<td class="text">{_seen(one.before)}<mark>{_seen(one.token)}</mark>'
            f"{_seen(one.next)}</td></tr>"
            for one in own.nlargest(SHOWN_WORST, "kl").itertuples())
        parts.append(f"<details{'' if parts else ' open'}><summary><code>{html.escape(policy)}</code>"
                     "</summary>"
                     '<div class="scroll"><table><tr><th>text</th><th>nats</th>'
                     '<th style="text-align:left">token after which the prediction is worst</th>'
                     f"</tr>{rows}</table></div></details>")
    return (f"<h2>Worst steps</h2><p>At budget {html.escape(str(found.budget.iloc[0]))}: the marked "
            "token is read, and the prediction of the next one is furthest from the full cache's."
            "</p>" + "".join(parts))


def _seen(text: str) -> str:
    """Text of a token with line ends shown and control characters away."""
    shown = "".join("⏎" if one == "\n" else one if one.isprintable() or one == " " else "·"
                    for one in text)
    return html.escape(shown)


def method(texts: pandas.DataFrame, losses: pandas.DataFrame) -> str:
    """How it was measured, and where every text that has a loss comes from."""
    meanings = "".join(f"<tr><td><code>{name}</code></td>"
                       f'<td style="text-align:left;white-space:normal">{html.escape(what)}</td>'
                       "</tr>" for name, what in COLUMNS.items())
    texts = texts[texts.text.isin(losses.text)].drop_duplicates("text")
    listed = "".join(
        f"<tr><td>{html.escape(one.text)}</td><td>{html.escape(one.category)}</td>"
        f"<td>{one.prompt_tokens}</td><td>{one.later_tokens}</td>"
        f'<td class="text">{html.escape(one.origin)}</td><td><code>{one.sha256[:12]}</code></td></tr>'
        for one in texts.itertuples())
    return ("<h2>How it was measured</h2><p>The prompt runs once with the full cache; each policy "
            "then chooses what to keep. The later tokens run with what was kept, tokens forced. "
            "Intervals are Student's t over the logarithms of texts.</p>"
            "<details><summary>texts</summary><div class='scroll'><table><tr><th>text</th>"
            "<th>category</th><th>prompt</th><th>later</th><th>from</th><th>SHA-256</th></tr>"
            f"{listed}</table></div></details>"
            f"<details><summary>columns of losses.csv</summary><table>{meanings}</table></details>")
