"""Does compression change the order of the spans? Rank correlation as in `span_order`, mean over
traces with the same spans (Pitfalls, Figures 2 and 3).
"""

import functools

import numpy as np

from ...plain import counted
from .. import load, statistics, style
from .losses import span_names
from .span_order import LEAST_SPANS, correlations

TITLE = "rank correlation of the order of spans by budget, mean over traces"
READS = "several"
POOLS = True


def pages(several, options):
    spans = span_names(several)
    for results in several:
        if not results.has("span_retained_importance"):
            raise load.NotMeasured(f"{results.path}: no labelled spans")
        if len(results.spans) < LEAST_SPANS:
            raise load.NotMeasured(f"{results.path}: fewer than {LEAST_SPANS} labelled spans")
        if len(results.spans) != len(spans):
            raise load.NotMeasured(f"{results.path}: other spans than {several[0].path}")
        if results.budgets.tolist() != several[0].budgets.tolist():
            raise load.Missing(f"{several[0].path} and {results.path} have different budgets")
    if np.sum(several[0].budgets < 1) < 2:
        raise load.NotMeasured("fewer than two budgets below 1")
    policies = load.competitors(load.common_policies(several))
    return {"span_order_traces": functools.partial(draw, several, spans, policies)}


def draw(several, spans, policies):
    found, (reference, *_) = zip(*(correlations(results) for results in several))
    found = load.stacked(found, "trace").sel(policy=policies, budget=several[0].budgets < reference)
    found = found.sortby("budget").transpose("policy", "budget", "trace")
    fig, axes = style.panels(
        "Order of the spans by class score, over traces",
        f"{several[0].model}, {counted(len(several), 'trace')}; Spearman's rank correlation "
        f"over {counted(len(spans), 'span')} with the order at budget {several[0].budget_text(reference)}\ncircles: traces "
        "(none where all scores are equal); line and bars: mean over them and its 95 % "
        "interval (t)",
        len(policies), 4, 1.45, (), (style.BUDGET, "rank correlation"),
        sharex=True, sharey=True)
    at, table = found.budget, []
    for ax, policy in zip(axes, policies):
        means, bands = [], []
        ax.plot(at, found.sel(policy=policy), "o", color=style.COLOURS[0],
                fillstyle="none", markersize=2.4, markeredgewidth=0.5, zorder=1)
        for each in found.sel(policy=policy):
            defined = each.dropna("trace")
            mean, (low, high) = statistics.over_traces(defined if defined.size else [np.nan])
            means.append(mean)
            bands.append((mean - low, high - mean))
            table.append([policy, float(each.budget), defined.size, mean, low, high])
        ax.errorbar(at, means, np.array(bands).T, color="black", linewidth=0.9,
                    capsize=2, marker="s", markersize=2.5, zorder=2)
        ax.set_ylim(-1.05, 1.05)
        ax.axhline(0, **style.DOTTED)
        ax.set_title(style.wrapped(policy, 30), fontsize=6)
    style.numbers(fig, ["policy", "budget", "traces", "mean", "low", "high"], table)
    return fig
