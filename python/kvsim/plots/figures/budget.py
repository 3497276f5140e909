"""Stream error, retained importance and errors by budget: means above, worst cases below.

With a single budget there is no curve to draw; then each policy is a row with one dot.
"""

import functools
from typing import NamedTuple

from .. import load, measures, style

TITLE = "stream error, retained importance, output and residual error by budget"
COLUMNS = 3
MEASURE = "stream_error_rms"


class Panel(NamedTuple):
    variable: str
    title: str
    over_layers: str | None   # None: the variable is of all layers together
    over_all: str             # what that is, in words


PANELS = (
    Panel("stream_error_rms", "stream error,\nrms over steps", None, ""),
    Panel("retained_importance_mean", "retained importance,\nmean over steps", "mean", " and layers"),
    Panel("output_error_mean", "output error,\nmean over steps", "mean", " and layers"),
    Panel("residual_error_max", "residual error,\nworst step", "max", " and layer"),
    Panel("retained_importance_min", "retained importance,\nworst step", "min", " and layer"),
    Panel("output_error_max", "output error,\nworst step", "max", " and layer"),
)


def pages(results, options):
    panels = [panel for panel in PANELS if results.has(panel.variable)]
    if not panels:
        raise load.Missing(f"{results.path}: none of the variables "
                           + ", ".join(panel.variable for panel in PANELS))
    draw = draw_dots if results.budgets.size == 1 else draw_curves
    return style.pages("budget", [results.policies], functools.partial(draw, results, panels))


def table(results, panel):
    """[policy, budget]: a measure over all layers."""
    if panel.over_layers is None:
        return results.variable(panel.variable, "policy", "budget")
    values = results.variable(panel.variable, "policy", "budget", "layer")
    return getattr(values, panel.over_layers)("layer")


def title(results, panel):
    if panel.over_layers is None:
        return f"{panel.title} (relative)"
    layers = panel.over_all if len(results.layers) > 1 else f", layer {results.layers[0]}"
    return f"{panel.title}{layers} ({unit(panel)})"


def unit(panel):
    return "fraction" if panel.variable.startswith("retained") else "relative"


def subtitle(results, panels):
    named = ["stream_error"] if panels[0].over_layers is None else []
    return f"{results.subtitle}{measures.layers_note([results], named)}"


def draw_curves(results, panels, policies, note):
    rows, columns = style.panel_grid(len(panels), COLUMNS)
    fig, axes = style.frame(
        f"Measures by budget{note}", subtitle(results, panels), rows, columns, 2.1,
        style.policy_keys(results, policies), (style.budget_label(results), ""), sharex=True)
    for ax, panel in zip(axes.flat, panels):
        values = table(results, panel)
        style.budget_lines(ax, results, policies, values)
        ax.set_title(title(results, panel))
        limits(ax, panel, values.sel(policy=[one for one in policies if not load.is_full(one)]))
    style.hide_unused(axes, len(panels))
    return fig


def limits(ax, panel, values):
    if panel.variable.startswith("retained"):
        ax.set_ylim(-0.02, 1.03)
    else:
        style.error_axis(ax, values, measure=panel.variable)


def draw_dots(results, panels, policies, note):
    labels, size, row = style.row_labels(policies)
    budget = results.budget_text(results.budgets[0])
    rows, columns = style.panel_grid(len(panels), COLUMNS)
    fig, axes = style.frame(
        f"Measures at budget {budget}{note}", subtitle(results, panels), rows, columns,
        0.7 + row * len(policies), (), sharey=True)
    for ax, panel in zip(axes.flat, panels):
        style.dot_rows(ax, results, policies, table(results, panel), labels, size)
        ax.set_title(title(results, panel))
        if panel.variable.startswith("retained"):
            ax.set_xlim(-0.03, 1.03)
        else:
            style.error_axis(ax, table(results, panel).sel(policy=policies), "x", panel.variable)
    style.hide_unused(axes, len(panels))
    return fig
