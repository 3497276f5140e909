"""Loss of each policy in each layer, and in all: policies down, layers across.

By default the residual error of each layer, with the stream error of all layers together in the
last column, and mean retained importance; `--metric` chooses. Every cell prints its number, so that
the figure is also the table; darker is worse."""

import math
from typing import NamedTuple

import numpy as np
import xarray

from .. import measures, style

TITLE = "errors of each layer and stream error of all, with retained importance, policy by layer"
BESIDE = 9  # up to this many layers the maps stand side by side
READING = "darker is worse, errors from 0.001 to 1; all: worst, mean or sum over the layers; –: undefined"


class Map(NamedTuple):
    """Values [policy, layer], what they come to over the layers, and how a cell is read."""

    title: str
    values: xarray.DataArray
    summary: xarray.DataArray
    kind: str  # share: 1 is best; count: 0, of the steps; error: 0


def find(results, options):
    """Measures to draw, and their maps."""
    names, budget = measures.of_files([results], options) or [measures.BESIDE], results.nearest_budget(options.budget)

    def cells(name, *dims):
        return results.variable(name, "policy", "budget", *dims).sel(budget=budget)

    return names, [one for name in names for one in maps_of(name, cells, len(names) == 1)]


def maps_of(name, cells, alone):
    """The maps of a measure; `cells(variable, *dims)` are those of the chosen policies."""
    if name == "stream_error":
        layers, whole = cells("residual_error", "layer", "step"), cells("stream_error", "step")
        return [Map("residual error, worst step\n(all: stream error)", layers.max("step"),
                    whole.max("step"), "error"),
                Map("residual error, rms over steps\n(all: stream error)", rms(layers), rms(whole),
                    "error")]
    words = measures.words(name)
    if name == "retained_importance":
        average = cells("retained_importance_mean", "layer")
        of_means = Map(f"{words},\nmean over steps (fraction)", average, average.mean("layer"), "share")
        if not alone:
            return [of_means]
        least, outliers = cells("retained_importance_min", "layer"), cells("outlier_count", "layer")
        return [Map(f"{words},\nworst step (fraction)", least, least.min("layer"),
                    "share"), of_means,
                Map(f"{words},\noutliers (steps below the line)", outliers,
                    outliers.sum("layer", min_count=1), "count")]
    most, average = cells(f"{name}_max", "layer"), cells(f"{name}_mean", "layer")
    return [Map(f"{words},\nworst step", most, most.max("layer"), "error"),
            Map(f"{words},\nmean over steps", average, average.mean("layer"), "error")]


def draw(results, options, found):
    names, maps = found
    budget, policies = results.nearest_budget(options.budget), results.policies
    beside = len(results.layers) <= BESIDE
    labels, size, row = style.row_labels(policies)
    held = measures.held_note([results], policies, options.budget or "0.5")
    rows, columns = (math.ceil(len(maps) / 3), min(len(maps), 3)) if beside else (len(maps), 1)
    fig, axes = style.frame(
        f"{measures.title(names)} by layer at budget {results.budget_text(budget)}",
        f"{results.subtitle}{measures.layers_note([results], names)}{held}\n{READING}", rows, columns,
        0.68 + row * len(policies), sharey=beside)
    for ax, one in zip(axes.flat, maps):
        values = one.values.values
        worse = 1 - values if one.kind == "share" else values
        # Square root: one outlier in a hundred steps must look different from none.
        shades, text = {
            "share": (worse, share),
            "count": (np.sqrt(worse / max(1.0, results.steps.size / 2)), "{:.0f}".format),
            "error": (style.error_shades(worse), error)}[one.kind]
        # The last column, set apart, is the summary over layers.
        style.number_map(ax, np.column_stack([values, one.summary.values]), shades, 1, text,
                         size=5.2 if values.shape[1] <= 20 else 4.6)
        ax.set(title=one.title, xlabel="layer")
        ax.set_yticks(range(len(policies)), labels, fontsize=size)
        ax.set_xticks(range(len(results.layers) + 1), [*results.layers, "all"])
    style.hide_unused(axes, len(maps))
    return fig


def rms(values):
    return np.sqrt((values ** 2).mean("step"))


def share(value):
    return f"{value:.2f}".replace("0.", ".", 1) if value < 0.995 else "1.0"


def error(value):
    """Two digits that count, in the room of four signs."""
    digits = 3 if value < 0.0995 else 2 if value < 9.95 else 0
    return f"{value:.{digits}f}".removeprefix("0")
