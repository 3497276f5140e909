"""Keep rate of each span in each layer at one budget, one panel per policy (Pitfalls, Figure 27).

Shades are the keep rate minus the share of all entries that the layer keeps (the bias index), so
that white is unbiased whatever the layer's budget; dots mark spans that are kept less than that.
"""

import numpy as np

from .. import load, style
from .by_layer import layer_ticks

TITLE = "bias index per layer and span at one budget, one panel per policy"
NEEDS = ("span", "bias_index")
LACKING = "no labelled spans"


def draw(results, options):
    policies, spans = load.competitors(results.policies), results.spans
    budget = results.nearest_budget(options.budget)
    bias = results.variable("bias_index", "policy", "budget", "span", "layer").sel(budget=budget)
    rows, columns = style.panel_grid(len(policies), 2 if len(results.layers) > 8 else 4)
    titles, lines = style.titles(policies, 46 if columns == 2 else 22)
    fig, axes = style.frame(
        f"Keep rate of each span against the layer's own at budget {results.budget_text(budget)}",
        f"{results.subtitle}\nbias index: keep rate of the span minus kept share of the layer; "
        "dots: kept less than that share", rows, columns,
        0.34 + 0.1 * lines + max(0.13 * len(spans), 0.3), (), ("layer of the model", ""))
    limit = max(0.05, float(abs(bias).fillna(0).max()))
    for ax, policy, title in zip(axes.flat, policies, titles):
        values = bias.sel(policy=policy)
        image = ax.imshow(values, aspect="auto", cmap="PuOr", vmin=-limit, vmax=limit,
                          interpolation="nearest")
        y, x = np.nonzero(np.asarray(values) < -0.01)
        ax.plot(x, y, ".", color="black", markersize=1.5, linestyle="none")
        ax.set_yticks(range(len(spans)), spans)
        layer_ticks(ax.xaxis, results)
        ax.set_title(title, fontsize=6)
        ax.grid(False)
    style.hide_unused(axes, len(policies))
    fig.colorbar(image, ax=list(axes.flat[:len(policies)]), label="bias index", pad=0.01,
                 fraction=0.03)
    return fig
