"""Keep rate of each span by budget, one panel per policy.

The grey line is what an unbiased policy would keep of every span: the share of all prompt entries
that the policy really kept (its realised rate), which is the diagonal when budgets are met exactly."""

import numpy as np

from .. import load, style

TITLE = "keep rate per span by budget, one panel per policy"
REFERENCE = {"color": style.REFERENCE, "linestyle": "--", "linewidth": 0.9, "marker": ""}


def pages(results, options):
    if not results.has("keep_rate", "bias_index") or not results.spans:
        raise load.Missing(f"{results.path}: no labelled spans")
    return {"keep_rate": lambda: draw(results)}


def of_layers(results):
    """(keep rate [policy, budget, span], realised rate [policy, budget]), means over layers; the
    second is what an unbiased policy would keep, by the definition of bias_index."""
    dims = ("policy", "budget", "span", "layer")
    rates, bias = (results.variable(name, *dims).sortby("budget") for name in ("keep_rate", "bias_index"))
    return rates.mean("layer"), (rates - bias).mean(["span", "layer"])


def span_lines(results, policies, values, title, about, ylabel, keys=()):
    """A panel per policy with a line for each span of `values` [policy, budget, span]; the figure and its axes."""
    looks = {span: style.line_style(i) for i, span in enumerate(results.spans)}
    own = [style.key(span, look, values.sel(span=span)) for span, look in looks.items()]
    rows, columns = style.panel_grid(len(policies), 4 if len(policies) <= 12 else 5)
    titles, lines = style.titles(policies, 30 if columns <= 4 else 26)
    height = {1: 2.9, 2: 1.9}.get(len(policies), 1.3 if rows > 1 else 1.6) + 0.1 * lines
    fig, axes = style.frame(title, results.subtitle + about, rows, columns, height, [*own, *keys],
                            (style.budget_label(results), ylabel), sharex=True, sharey=True)
    budgets = values.budget.values
    for ax, policy, text in zip(axes.flat, policies, titles):
        for span, look in looks.items():
            ax.plot(budgets, values.sel(policy=policy, span=span), zorder=2, **look)
        ax.set_title(text, fontsize=7 if lines == 1 else 6)
        if budgets.size == 1 or np.ptp(budgets) > 0.3:  # otherwise matplotlib zooms in
            ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    style.hide_unused(axes, len(policies))
    return fig, axes.flat[:len(policies)]


def draw(results):
    keep, unbiased = of_layers(results)
    # The full cache keeps everything at every budget: a panel of it would show nothing.
    policies = [one for one in results.policies if not load.is_full(one)] or results.policies
    fig, axes = span_lines(results, policies, keep, "Keep rate per span, mean over layers", "",
                           "keep rate (fraction of the span)", [style.key("unbiased (realised rate)", REFERENCE)])
    for ax, policy in zip(axes, policies):
        # A dot stands for the line when there is only one budget.
        ax.plot(keep.budget, unbiased.sel(policy=policy), zorder=1,
                **{**REFERENCE, "marker": "_" if keep.budget.size == 1 else "", "markersize": 14})
    return fig
