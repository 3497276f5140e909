"""Retained importance over the later steps: one panel per layer, one line per policy.

The dotted line at 0.5 is the outlier line: a step below it has lost more than half of the
importance that its query would have found in the full cache.
"""

import functools

import numpy as np
import pandas
from matplotlib.ticker import MaxNLocator

from .. import load, style

TITLE = "retained importance over steps, one panel per layer"
OUTLIER = 0.5
MEDIAN = 15  # steps
READING = (f"thin: every step; thick: running median of {MEDIAN} steps; "
           "large marker: worst step; dotted: outlier line")


def pages(results, options):
    if not results.has("retained_importance"):
        raise load.Missing(f"{results.path}: no variable retained_importance")
    return style.pages("retained_importance", style.policy_pages(results),
                       functools.partial(draw, results, options))


def draw(results, options, policies, note):
    budget = results.nearest_budget(options.budget)
    values = results.variable("retained_importance", "policy", "budget", "layer", "step")
    values = values.sel(budget=budget)
    layers = results.layers
    rows, columns = style.panel_grid(len(layers), 4 if len(layers) <= 12 else 5)
    height = 2.9 if len(layers) == 1 else max(1.15, min(1.7, 7.5 / rows))
    fig, axes = style.frame(
        f"Retained importance over steps at budget {results.budget_text(budget)}{note}",
        f"{results.subtitle}\n{READING}", rows, columns, height,
        style.policy_keys(results, policies, values),
        ("step (position of the query, tokens)", "retained importance (fraction)"),
        sharex=True, sharey=True)
    for layer, ax in zip(layers, axes.flat):
        panel(ax, results, policies, values.sel(layer=layer), layer)
    style.hide_unused(axes, len(layers))
    return fig


def panel(ax, results, policies, values, layer):
    """Lines of one layer; `values` is [policy, step]."""
    steps = results.steps
    ax.axhline(OUTLIER, color="black", linewidth=0.7, linestyle=":", zorder=0)
    for number, policy in enumerate(policies):
        line = values.sel(policy=policy)
        look = {"zorder": 3, **style.policy_style(results, policy)}
        ax.plot(steps, line, color=look["color"], linewidth=0.5, alpha=0.35, zorder=2)
        # Markers tell lines apart where colour cannot; shifted, so that they do not coincide.
        every = max(1, steps.size // 4)
        ax.plot(steps, running_median(line), markevery=(every * number // len(policies), every),
                **look)
        if look["marker"] and not line.isnull().all():
            worst = line.isel(step=line.argmin("step"))
            ax.plot(worst.step, worst, **{**look, "markersize": 5, "zorder": 4})
    if values.isnull().all():
        style.note_undefined(ax)
    ax.set_title(f"layer {layer}")
    ax.set_ylim(-0.02, 1.02)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    ax.margins(x=0.02)


def running_median(line):
    """Median of the `MEDIAN` steps around each step, of fewer at the ends; NaN stays out."""
    windows = pandas.Series(np.asarray(line)).rolling(MEDIAN, center=True, min_periods=1)
    return windows.median().values
