"""Keep rate of each span by budget, a row per order of the spans and a column
per policy: both orders of the instructions below each other (Pitfalls, Figures 7 and 10; with a
whitelist 11, with fair eviction 12).

Traces whose spans come in the same order share a row, which shows their mean and its interval.
"""

import functools
import re

import numpy as np

from ...plain import counted
from .. import load, statistics, style
from .losses import span_names
from .keep_rate import REFERENCE, of_layers

TITLE = "keep rate per span by budget, orders of the spans down, policies across"
READS = "several"
POOLS = True
COLUMNS = 6


def narrow(name, width=12):
    """A name over several lines, broken after underscores and hyphens where it is long."""
    lines = [""]
    for part in re.split(r"(?<=[_-])", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def pages(several, options):
    rows = orders(several)
    groups = style.groups(load.competitors(load.common_policies(several)), COLUMNS)
    return style.pages("keep_rate_traces", groups, functools.partial(draw, several, rows))


def orders(several):
    """{label: results files whose spans come in one order}, in the order of the files."""
    span_names(several)
    found = {}
    for results in several:
        if not results.has("keep_rate", "bias_index"):
            raise load.NotMeasured(f"{results.path}: no labelled spans")
        names = results.spans
        if results.has("span_begin"):
            begins = results.variable("span_begin", "span")
            names = [str(span) for span in begins.sortby(begins).span.values]
        found.setdefault((*names, *results.budgets), (names[0], []))[1].append(results)
    rows = {}
    for first, files in found.values():
        plain = label(first, files, several)
        rows[plain if plain not in rows else f"{plain} ({len(rows) + 1})"] = files
    return rows


def label(first, files, several):
    if len(files) == 1:
        return load.names(several)[several.index(files[0])]
    return f"{first} first, {counted(len(files), 'trace')}"


def of_files(files, policies):
    """(keep rate [policy, budget, span, trace], unbiased line [policy, budget, trace])."""
    found = []
    for tables in zip(*(of_layers(results) for results in files)):
        tables = [table.reindex(span=files[0].spans) if "span" in table.dims else table
                  for table in tables]
        found.append(load.stacked(tables, "trace").sel(policy=policies).transpose(..., "trace"))
    return found


def draw(several, rows, policies, note):
    spans = span_names(several)
    looks = {span: style.line_style(i) for i, span in enumerate(spans)}
    keys = [style.key(span, look) for span, look in looks.items()]
    keys.append(style.key("unbiased (realised rate)", REFERENCE))
    titles = [style.wrapped(policy, 20) for policy in policies]
    lines = max(title.count("\n") + 1 for title in titles)
    models = ", ".join(sorted({results.model for results in several}))
    bands = any(len(files) > 1 for files in rows.values())
    fig, axes = style.frame(
        f"Keep rate per span, mean over layers{note}",
        f"{models}; rows: {'; '.join(rows)}"
        + ("\nlines and bands: mean over traces and its 95 % interval (t)" if bands else ""),
        len(rows), len(policies), 1.25 + 0.1 * lines / len(rows), keys,
        (style.BUDGET, "keep rate (fraction of the span)"),
        sharex=True, sharey=True)
    table = []
    for row, (name, files) in zip(axes, rows.items()):
        keep, unbiased = of_files(files, policies)
        bias = (keep - unbiased).transpose(*keep.dims)
        at_budgets = keep.budget.values
        row[0].set_ylabel(narrow(name.replace(", ", ",\n"), 20), fontsize=6)
        for ax, policy in zip(row, policies):
            ax.plot(at_budgets, unbiased.sel(policy=policy).mean("trace"), zorder=1, **REFERENCE)
            for span in files[0].spans:
                at = {"policy": policy, "span": span}
                rate, band = statistics.over_traces(keep.sel(at), "share")
                ax.plot(at_budgets, rate, zorder=2, **looks[span])
                style.band(ax, at_budgets, band, looks[span], len(files) > 1)
                mean, ends = statistics.over_traces(bias.sel(at))
                table += [[name, len(files), policy, budget, span, *row] for budget, *row in zip(
                    keep.budget.values, rate, *band, mean, *ends)]
            if at_budgets.size == 1 or np.ptp(at_budgets) > 0.3:
                ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xticks=[0, 0.5, 1],
                       yticks=[0, 0.5, 1])
    for ax, title in zip(axes[0], titles):
        ax.set_title(title, fontsize=7 if lines == 1 else 5.5)
    style.numbers(fig, ["traces", "count", "policy", "budget", "span", "keep_rate", "low", "high",
                        "bias_index", "bias_low", "bias_high"], table)
    return fig
