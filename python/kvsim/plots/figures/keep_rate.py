"""Keep rate of each span by budget, one panel per policy.

The grey line is what an unbiased policy would keep of every span: the share of all prompt entries
that the policy really kept (its realised rate), which is the diagonal when budgets are met exactly.
"""

import functools

import numpy as np

from .. import load, style

TITLE = "keep rate per span by budget, one panel per policy"


def pages(results, options):
    if not results.has("keep_rate", "bias_index") or not results.spans:
        raise load.Missing(f"{results.path}: no labelled spans")
    # The full cache keeps everything at every budget: a panel of it would show nothing.
    policies = [one for one in results.policies if not load.is_full(one)] or results.policies
    return style.pages("keep_rate", [policies], functools.partial(draw, results))


def of_layers(results):
    """(keep rate [policy, budget, span], realised rate [policy, budget]), means over layers; the
    second is what an unbiased policy would keep, by the definition of bias_index."""
    dims = ("policy", "budget", "span", "layer")
    rates, bias = (results.variable(name, *dims).sortby("budget")
                   for name in ("keep_rate", "bias_index"))
    return rates.mean("layer"), (rates - bias).mean(["span", "layer"])


def draw(results, policies, note):
    keep, unbiased = of_layers(results)
    looks = {span: style.line_style(i) for i, span in enumerate(results.spans)}
    keys = [style.key(span, look, keep.sel(span=span)) for span, look in looks.items()]
    reference = {"color": style.REFERENCE, "linestyle": "--", "linewidth": 0.9, "marker": ""}
    keys.append(style.key("unbiased (realised rate)", reference))
    rows, columns = style.panel_grid(len(policies), 4 if len(policies) <= 12 else 5)
    titles, lines = style.titles(policies, 30 if columns <= 4 else 26)
    height = {1: 2.9, 2: 1.9}.get(len(policies), 1.3 if rows > 1 else 1.6) + 0.1 * lines
    fig, axes = style.frame(f"Keep rate per span, mean over layers{note}", results.subtitle,
                            rows, columns, height, keys,
                            (style.budget_label(results),
                             "keep rate (fraction of the span)"),
                            sharex=True, sharey=True)
    budgets = keep.budget.values
    for ax, policy, title in zip(axes.flat, policies, titles):
        # A dot stands for the line when there is only one budget.
        ax.plot(budgets, unbiased.sel(policy=policy), zorder=1,
                **{**reference, "marker": "_" if budgets.size == 1 else "", "markersize": 14})
        for span, look in looks.items():
            ax.plot(budgets, keep.sel(policy=policy, span=span), zorder=2, **look)
        ax.set_title(title, fontsize=7 if lines == 1 else 6)
        if budgets.size == 1 or np.ptp(budgets) > 0.3:  # otherwise matplotlib zooms in
            ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    style.hide_unused(axes, len(policies))
    return fig
