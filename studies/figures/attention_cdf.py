"""How concentrated attention is: what a query's largest entries hold, per layer."""

import matplotlib
import numpy as np

from .. import style

TITLE = "attention held by the largest entries, mean and percentile 5, one line per layer"
NEEDS = ("attention_cdf_mean", "attention_cdf_p05")
LACKING = "no attention_cdf; kvsim replay --metric attention_cdf measures it"
PANELS = ("mean over heads and steps", "percentile 5: the flattest rows")


def draw(results, options):
    shares = results.data["share"].values
    mean = {"color": "black", "linestyle": "-", "marker": "o"}
    even = {"color": "black", "linestyle": ":"}
    fig, axes = style.frame(
        "Concentration of attention", f"{results.subtitle}\nshare of a query's attention that its "
        "largest visible entries hold", 1, 2, 2.4,
        [style.key("mean over layers", mean), style.key("attention spread evenly", even)],
        ("share of the visible entries", ""), sharey=True)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, len(results.layers)))
    for ax, name, title in zip(axes[0], NEEDS, PANELS):
        values = results.variable(name, "layer", "share")
        for line, colour in zip(values, colours):
            ax.plot(shares, line, color=colour, linewidth=0.7)
        ax.plot(shares, values.mean("layer"), **mean)
        ax.plot(shares, shares, **even)
        ax.set(xscale="log", ylim=(0, 1.02), title=title)
        ax.set_xticks(shares, [f"{share:g}" for share in shares])
        ax.minorticks_off()
    axes[0, 0].set_ylabel("attention (fraction)")
    count = len(results.layers)
    if count > 1:   # a field per layer, whatever their numbers
        scale = matplotlib.cm.ScalarMappable(
            matplotlib.colors.BoundaryNorm(np.arange(count + 1) - 0.5, count),
            matplotlib.colors.ListedColormap(colours))
        bar = fig.colorbar(scale, ax=list(axes[0]), label="layer (light: deep)", pad=0.01,
                           fraction=0.03)
        named = range(0, count, -(-count // 12))
        bar.set_ticks(named, labels=[results.layers[at] for at in named])
        bar.minorticks_off()
    return fig
