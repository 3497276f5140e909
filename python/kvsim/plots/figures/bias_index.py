"""Bias index of each span and the spread over spans by budget, all policies.

Mean over layers. Above 0 a span is kept more than the prompt as a whole, below 0 less.
"""

import functools

from .. import load, style

TITLE = "bias index per span and spread over spans by budget"


def pages(results, options):
    results.need_spans("bias_index", "bias_spread")
    return style.pages("bias_index", [load.competitors(results.policies)],
                       functools.partial(draw, results))


def draw(results, policies, note):
    bias = results.variable("bias_index", "policy", "budget", "span", "layer").mean("layer")
    spread = results.variable("bias_spread", "policy", "budget", "layer").mean("layer")
    panels = [*((f"bias index of {span}", bias.sel(span=span)) for span in results.spans),
              ("spread: largest − smallest keep rate", spread)]
    rows, columns = style.panel_grid(len(panels), 4)
    fig, axes = style.frame(
        f"Eviction bias, mean over layers{note}",
        f"{results.subtitle}\nbias index: keep rate of the span − share of all entries kept; "
        "0 is unbiased", rows, columns, 2.0 if rows == 1 else 1.6,
        style.policy_keys(results, policies),
        (style.budget_label(results), "fraction of the span"), sharex=True)
    limit = max(0.05, 1.05 * float(abs(bias).fillna(0).max()))
    for ax, (title, values) in zip(axes.flat, panels):
        style.budget_lines(ax, results, policies, values)
        style.panel_title(ax, title, columns)
        if title.startswith("bias"):
            ax.axhline(0, color="black", linewidth=0.7, linestyle=":")
            ax.set_ylim(-limit, limit)
        else:
            ax.set_ylim(bottom=-0.02)
    style.hide_unused(axes, len(panels))
    return fig
