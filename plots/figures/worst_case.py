"""Worst case, mean and outlier count of retained importance: policies down, layers across.

Every cell prints its number, so that the figure is also the table; darker is worse in all three.
"""

import functools

import matplotlib
import numpy as np

from .. import load, style

TITLE = "worst step, mean and outlier count of retained importance, policy by layer"
BESIDE = 9  # up to this many layers the three maps stand side by side
READING = "darker is worse; all: worst, mean and sum over the layers; –: undefined"


def pages(results, options):
    needed = ("retained_importance_min", "retained_importance_mean", "outlier_count")
    for name in needed:
        if not results.has(name):
            raise load.Missing(f"{results.path}: no variable {name}")
    size = 30 if len(results.layers) <= BESIDE else 10
    return style.pages("worst_case", style.policy_pages(results, size),
                       functools.partial(draw, results, options))


def draw(results, options, policies, note):
    budget = results.nearest_budget(options.budget)
    chosen = [results.policies.index(policy) for policy in policies]

    def table(name):
        return results.variable(name, "policy", "budget", "layer")[chosen, budget]

    steps = results.steps.size
    maps = [
        ("worst step (minimum, fraction)", table("retained_importance_min"), worst, 1.0, share),
        ("mean over steps (fraction)", table("retained_importance_mean"), mean, 1.0, share),
        (f"outliers (steps below the line, of {steps})", table("outlier_count"), total, 0, count),
    ]
    beside = len(results.layers) <= BESIDE
    labels, size, row = style.row_labels(policies)
    rows, columns = (1, 3) if beside else (3, 1)
    fig, axes = style.frame(
        f"Retained importance, worst and mean, at budget {results.budget_text(budget)}{note}",
        f"{results.subtitle}\n{READING}", rows, columns, 0.55 + row * len(policies), sharey=beside)
    for ax, (title, values, summary, best, text) in zip(axes.flat, maps):
        heat_map(ax, values, summary(values), best, text, steps)
        ax.set_title(title)
        ax.set_yticks(range(len(policies)), labels, fontsize=size)
        ax.set_xticks(range(len(results.layers) + 1), [*results.layers, "all"])
        ax.set_xlabel("layer")
    return fig


def heat_map(ax, values, summary, best, text, steps):
    """Cells with their numbers; the last column, set apart, is the summary over layers."""
    policies, layers = values.shape
    worse = values if best == 0 else 1 - values
    top = 1.0 if best == 1.0 else max(1.0, steps / 2)
    # Square root: one outlier in a hundred steps must look different from none.
    norm = matplotlib.colors.PowerNorm(0.5 if best == 0 else 1.0, 0, top, clip=True)
    colours = matplotlib.colormaps["Blues"]
    image = colours(norm(np.nan_to_num(worse, nan=0.0)))
    image[np.isnan(values)] = (0.93, 0.93, 0.93, 1)
    ax.imshow(image, aspect="auto", interpolation="nearest")
    size = 5.2 if layers <= 20 else 4.6
    for i in range(policies):
        for k in range(layers):
            dark = np.dot(image[i, k, :3], (0.299, 0.587, 0.114)) < 0.5
            ax.text(k, i, text(values[i, k]), ha="center", va="center", fontsize=size,
                    color="white" if dark else "black")
        ax.text(layers, i, text(summary[i]), ha="center", va="center", fontsize=size,
                fontweight="bold")
    ax.set_xlim(-0.5, layers + 0.5)
    ax.grid(False)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def over_layers(function, values):
    """`function` over the defined values of each row; NaN for a row without any."""
    defined = [row[~np.isnan(row)] for row in values]
    return np.array([function(row) if row.size else np.nan for row in defined])


def worst(values):
    return over_layers(np.min, values)


def mean(values):
    return over_layers(np.mean, values)


def total(values):
    return over_layers(np.sum, values)


def share(value):
    if np.isnan(value):
        return "–"
    return f"{value:.2f}".replace("0.", ".", 1) if value < 0.995 else "1.0"


def count(value):
    return "–" if np.isnan(value) else f"{value:.0f}"
