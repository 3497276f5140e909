"""Bias index of each span and the spread over spans against the compression ratio, all policies.

Mean over layers. Above 0 a span is kept more than the prompt as a whole, below 0 less.
"""

import functools
import warnings

import numpy as np

from .. import load, style

TITLE = "bias index per span and spread over spans against compression ratio"


def pages(results, options):
    if not results.has("bias_index", "bias_spread") or results.data.sizes.get("span", 0) == 0:
        raise load.NotMeasured(f"{results.path}: no labelled spans")
    groups = [[one for one in group if not style.is_full(one)]
              for group in style.policy_pages(results)]
    if not groups[0]:
        raise load.NotMeasured(f"{results.path}: no policy that drops entries")
    return style.pages("bias_index", groups, functools.partial(draw, results))


def draw(results, policies, note):
    spans = [str(span) for span in results.data["span"].values]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an empty span stays NaN
        bias = np.nanmean(results.variable("bias_index", "policy", "budget", "span", "layer"), 3)
        spread = np.nanmean(results.variable("bias_spread", "policy", "budget", "layer"), 2)
    panels = [*((f"bias index of {span}", bias[..., i]) for i, span in enumerate(spans)),
              ("spread: largest − smallest keep rate", spread)]
    rows, columns = style.panel_grid(len(panels), 4)
    fig, axes = style.frame(
        f"Eviction bias, mean over layers{note}",
        f"{results.subtitle}\nbias index: keep rate of the span − share of all entries kept; "
        "0 is unbiased", rows, columns, 2.0 if rows == 1 else 1.6,
        [style.key(policy, style.policy_style(results, policy)) for policy in policies],
        ("compression ratio (1 − budget)", "fraction of the span"), sharex=True)
    order = np.argsort(results.budgets, kind="stable")
    ratio = 1 - results.budgets[order]
    limit = max(0.05, 1.05 * float(np.nanmax(np.abs(bias), initial=0)))
    for ax, (title, values) in zip(axes.flat, panels):
        for policy in policies:
            ax.plot(ratio, values[results.policies.index(policy), order],
                    **{"zorder": 2, **style.policy_style(results, policy)})
        ax.set_title(title)
        if title.startswith("bias"):
            ax.axhline(0, color="black", linewidth=0.7, linestyle=":")
            ax.set_ylim(-limit, limit)
        else:
            ax.set_ylim(bottom=-0.02)
    style.hide_unused(axes, len(panels))
    return fig
