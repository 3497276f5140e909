"""How importance moves while the window's queries pass: over time and over positions (ReST-KV,
Figure 3, and the drift of its Eq. 10).

First figure: output change over queries and positions, and how the best entries move, in four layers.
Second: drift of every head by layer.
"""

import functools

import matplotlib
import numpy as np

from .. import style
from .by_layer import DOTS, dots_by_layer

TITLE = "output change over queries and positions, and the drift of the best entries"
NEEDS = ("drift", "drift_position", "output_change_map")
LACKING = "no drift; kvsim replay --metric drift measures it"
PANELS = 4


def pages(results, options):
    budget = results.nearest_budget(options.budget)
    return {"drift": functools.partial(maps, results, budget),
            "drift-layers": functools.partial(by_layer, results, budget)}


def maps(results, budget):
    values = results.variable("output_change_map", "layer", "row", "part")
    moves = results.variable("drift_position", "indicator", "budget", "layer", "head", "row")
    moves = moves.sel(budget=budget).mean("head")
    moves = moves - moves.isel(row=0)
    queries, parts = results.data["row"].values, results.data["part"].values
    shown = style.spread(results.layers, PANELS)
    looks = {name: style.line_style(k) for k, name in enumerate(moves.indicator.values)}
    fig, axes = style.frame(
        f"Output change while the window's queries pass, best entries at budget "
        f"{results.budget_text(budget)}", f"{results.subtitle}\nabove: change of a head's output "
        "when an entry is removed (ReST-KV Eq. 7), mean over heads and neighbouring entries; below: "
        "mean position of the best entries, mean over heads, minus that of the first query",
        2, len(shown), 1.7, [style.key(*one) for one in looks.items()])
    for (above, below), layer in zip(axes.T, shown):
        own = values.sel(layer=layer)
        some = own.values[own.values > 0]
        low, high = (np.percentile(some, (2, 99.5)) if some.size else (0.1, 1.0))
        image = above.imshow(own, aspect="auto", cmap="viridis", interpolation="nearest",
                             norm=matplotlib.colors.LogNorm(low, max(high, 1.001 * low)),
                             extent=(parts[0], parts[-1], queries[-1] + 0.5, queries[0] - 0.5))
        bar = fig.colorbar(image, ax=above, location="bottom", pad=0.03, fraction=0.06)
        style.log_ticks(bar.ax.xaxis, 3)
        above.set(title=f"layer {layer}", xlabel="position of the entry")
        above.grid(False)
        lines = moves.sel(layer=layer)
        for name, look in looks.items():
            below.plot(queries, lines.sel(indicator=name), **{**look, "markersize": 2})
        if lines.isnull().all():
            style.note_undefined(below)
        below.axhline(0, **style.DOTTED)
        below.set_xlabel("position of the query")
        below.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(3, integer=True))
    axes[0, 0].set_ylabel("position of the query")
    axes[1, 0].set_ylabel("shift (tokens)")
    return fig


def by_layer(results, budget):
    drift, width, shift = (
        results.variable(name, "indicator", "budget", "layer", "head").sel(budget=budget)
        for name in ("drift", "drift_width", "drift_shift"))
    names = drift.indicator.values
    fig, axes = style.frame(
        f"Drift of the best entries at budget {results.budget_text(budget)}",
        f"{results.subtitle}\nmean position of the best entries, rear half of the window minus "
        "front half; the adaptive window widens and shifts only beyond ± 2000 tokens",
        1, len(names), 2.1, [style.key("one head", DOTS),
                             style.key("mean over heads", style.line_style(0))],
        ("layer of the model", ""), sharey=True)
    for ax, name in zip(axes[0], names):
        dots_by_layer(ax, results, drift.sel(indicator=name), style.line_style(0))
        ax.set_title(f"{name}: widths {span(width.sel(indicator=name))}, "
                     f"shifts {span(shift.sel(indicator=name))}")
    axes[0, 0].set_ylabel("drift (tokens)")
    return fig


def span(values):
    low, high = float(values.min()), float(values.max())
    if np.isnan(low):
        return "undefined"
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
