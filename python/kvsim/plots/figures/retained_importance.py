"""Retained importance over the later steps, one panel per layer.

Up to FEW policies are lines. More are rows of a map, since lines would hide each other. The outlier
line at 0.5 divides its two colours: a step below it has lost more than half of the importance that
its query would have found in the full cache."""

import matplotlib
import numpy as np
import pandas
from matplotlib.ticker import MaxNLocator

from .. import load, measures, style

TITLE = "retained importance over steps, one panel per layer"
NEEDS = ("retained_importance",)
OUTLIER = 0.5
FEW = 3       # policies whose lines are still told apart
PARTS = 250   # columns of a map, at most: a panel has few more pixels
MEDIAN = 15   # steps
LINES = (f"thin: every step; thick: running median of {MEDIAN} steps; large marker: worst step; dotted: outlier line")
MAPS = "A row is a policy, best mean first. Red: less than half is retained. White dot: worst step."


def draw(results, options):
    rivals = [one for one in results.policies if not load.is_full(one)] or results.policies
    policies = results.policies if len(rivals) <= FEW else rivals
    layers, budget = results.layers, results.nearest_budget(options.budget)
    values = results.variable("retained_importance", "policy", "layer", "budget", "step")
    values = values.sel(budget=budget, policy=policies)
    lines = len(rivals) <= FEW
    held = measures.held_note([results], policies, options.budget or "0.5")
    if not lines:
        means = values.mean(["layer", "step"]).fillna(-1).values
        values = values.isel(policy=np.argsort(-means, kind="stable"))
    labels, size, row = style.row_labels(values.policy.values.tolist())
    height = 1.5 if lines else 0.3 + row * len(policies)
    fig, axes = style.panels(
        f"Retained importance over steps at budget {results.budget_text(budget)}",
        f"{results.subtitle}{held}\n{LINES if lines else MAPS}", len(layers), 4 if len(layers) <= 12 else 5,
        height if len(layers) > 1 else max(2.9, height), style.policy_keys(results, policies, values) if lines else (),
        ("step (position of the query, tokens)", "retained importance (fraction)" if lines else ""),
        sharex=True, sharey=True)
    for layer, ax in zip(layers, axes):
        if lines:
            panel(ax, results, policies, values.sel(layer=layer))
        else:
            image = draw_map(ax, values.sel(layer=layer))
            style.colour_rows(ax, results, values.policy.values, labels, size)
        ax.set_title(f"layer {layer}")
        ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=True))
    if not lines:
        fig.colorbar(image, ax=axes, label="retained importance (fraction)", pad=0.01, fraction=0.02, aspect=30)
    return fig


def panel(ax, results, policies, values):
    """Lines of one layer; `values` is [policy, step]."""
    ax.axhline(OUTLIER, **style.DOTTED, zorder=0)
    thin_and_thick(ax, results, policies, values)
    for policy in policies:
        line, look = values.sel(policy=policy), style.policy_style(results, policy)
        if look["marker"] and not line.isnull().all():
            worst = line.isel(step=line.argmin("step"))
            ax.plot(worst.step, worst, **{**look, "markersize": 5, "zorder": 4})
    if values.isnull().all():
        style.note_undefined(ax)
    ax.set_ylim(-0.02, 1.02)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])


def thin_and_thick(ax, results, policies, values):
    """Every step of `values` [policy, step] and a running median."""
    # Markers tell lines apart where colour cannot; shifted, so that they do not coincide.
    every = max(1, results.steps.size // 4)
    for number, policy in enumerate(policies):
        line, look = values.sel(policy=policy), {"zorder": 3, **style.policy_style(results, policy)}
        ax.plot(results.steps, line, color=look["color"], linewidth=0.5, alpha=0.35, zorder=2)
        ax.plot(results.steps, running_median(line), markevery=(every * number // len(policies), every), **look)
    ax.margins(x=0.02)


def draw_map(ax, values):
    """Rows of one layer; `values` is [policy, step]."""
    steps, cells = values.step.values, values.values
    image = ax.imshow(
        in_parts(cells), aspect="auto", interpolation="nearest", cmap="RdBu",
        norm=matplotlib.colors.TwoSlopeNorm(OUTLIER, 0, 1),
        extent=(steps[0] - 0.5, steps[-1] + 0.5, len(cells) - 0.5, -0.5))
    defined = np.flatnonzero(~np.isnan(cells).all(axis=1))
    ax.plot(steps[np.nanargmin(cells[defined], axis=1)], defined, linestyle="", marker="o",
            markersize=2.6, color="white", markeredgecolor="black", markeredgewidth=0.5)
    ax.set_facecolor("0.93")
    ax.grid(False)
    return image


def in_parts(cells):
    """[policy, step], or the least of each of PARTS parts where there are more steps."""
    parts = np.array_split(cells, min(PARTS, cells.shape[1]), axis=1)
    return np.stack([np.fmin.reduce(part, axis=1) for part in parts], axis=1)


def running_median(line):
    """Median of the `MEDIAN` steps around each step, of fewer at the ends; NaN stays out."""
    windows = pandas.Series(np.asarray(line)).rolling(MEDIAN, center=True, min_periods=1)
    return windows.median().values
