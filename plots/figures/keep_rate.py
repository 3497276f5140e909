"""Keep rate of each span against the compression ratio, one panel per policy.

The grey line is what an unbiased policy would keep of every span: the share of all prompt entries
that the policy really kept (its realised rate), which is the diagonal when budgets are met exactly.
"""

import functools
import warnings

import numpy as np

from .. import load, style

TITLE = "keep rate per span against compression ratio, one panel per policy"
PAGE_PANELS = 30


def pages(results, options):
    if not results.has("keep_rate", "bias_index") or results.data.sizes.get("span", 0) == 0:
        raise load.Missing(f"{results.path}: no labelled spans")
    # The full cache keeps everything at every budget: a panel of it would show nothing.
    policies = [one for one in results.policies if not style.is_full(one)] or results.policies
    groups = [policies[first:first + PAGE_PANELS]
              for first in range(0, len(policies), PAGE_PANELS)]
    return style.pages("keep_rate", groups, functools.partial(draw, results))


def draw(results, policies, note):
    dims = ("policy", "budget", "span", "layer")
    rates, bias = results.variable("keep_rate", *dims), results.variable("bias_index", *dims)
    with warnings.catch_warnings():
        # An empty span has no rate; its NaN stays NaN and is not drawn.
        warnings.simplefilter("ignore", RuntimeWarning)
        keep = np.nanmean(rates, axis=3)                      # policy, budget, span
        unbiased = np.nanmean(rates - bias, axis=(2, 3))      # by the definition of bias_index
    spans = [str(span) for span in results.data["span"].values]
    keys = [style.key(span, style.line_style(i), keep[..., i]) for i, span in enumerate(spans)]
    reference = {"color": style.REFERENCE, "linestyle": "--", "linewidth": 0.9, "marker": ""}
    keys.append(style.key("unbiased (realised rate)", reference))
    rows, columns = style.panel_grid(len(policies), 4 if len(policies) <= 12 else 5)
    titles = [style.wrapped(policy, 30 if columns <= 4 else 26) for policy in policies]
    lines = max(title.count("\n") + 1 for title in titles)
    height = {1: 2.9, 2: 1.9}.get(len(policies), 1.3 if rows > 1 else 1.6) + 0.1 * lines
    fig, axes = style.frame(f"Keep rate per span, mean over layers{note}", results.subtitle,
                            rows, columns, height, keys,
                            ("compression ratio (1 − budget)",
                             "keep rate (fraction of the span)"),
                            sharex=True, sharey=True)
    order = np.argsort(results.budgets, kind="stable")
    ratio = 1 - results.budgets[order]
    for ax, policy, title in zip(axes.flat, policies, titles):
        index = results.policies.index(policy)
        # A dot stands for the line when there is only one budget.
        ax.plot(ratio, unbiased[index, order], zorder=1,
                **{**reference, "marker": "_" if ratio.size == 1 else "", "markersize": 14})
        for i in range(len(spans)):
            ax.plot(ratio, keep[index, order, i], zorder=2, **style.line_style(i))
        ax.set_title(title, fontsize=7 if lines == 1 else 6)
        if ratio.size == 1 or np.ptp(ratio) > 0.3:  # otherwise matplotlib zooms in
            ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    style.hide_unused(axes, len(policies))
    return fig
