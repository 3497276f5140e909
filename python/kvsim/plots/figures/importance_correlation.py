"""Correlation of the importance that a policy kept with that of the full cache, over budgets.

Needs `kvsim replay --metric importance_pearson,importance_cosine`.
"""

import functools

from .. import load, style

TITLE = "correlation of kept importance with the full cache, against the budget"
NAMES = {"importance_pearson": "Pearson", "importance_cosine": "cosine"}


def pages(results, options):
    shown = [name for name in NAMES if results.has(name)]
    if not shown:
        raise load.NotMeasured(f"{results.path}: no importance_pearson or importance_cosine; "
                               "kvsim replay --metric importance_pearson measures it")
    return style.pages("importance_correlation", [results.policies],
                       functools.partial(draw, results, shown))


def draw(results, shown, policies, note):
    fig, axes = style.frame(
        f"Correlation of importance with the full cache{note}",
        f"{results.subtitle}\nover all heads and entries at one step; above: mean over layers and "
        "steps, below: worst (layer, step)", 2, len(shown), 1.8,
        style.policy_keys(results, policies),
        (style.budget_label(results), ""), sharex=True)
    for column, name in zip(axes.T, shown):
        values = results.variable(name, "policy", "budget", "layer", "step")
        of_all = ["layer", "step"]
        for ax, lines in zip(column, (values.mean(of_all), values.min(of_all))):
            style.budget_lines(ax, results, policies, lines)
            ax.set_ylim(top=1.03)
        column[0].set_title(NAMES[name])
    axes[0, 0].set_ylabel("mean")
    axes[1, 0].set_ylabel("worst")
    return fig
