"""Is attention local in time? Variance within windows of 16 steps against random orders of the
steps (KeepKV, Figure 2c, with the comparison that the figure lacks).

Needs `kvsim replay --metric locality`.
"""

import functools

from .. import style

TITLE = "locality of attention in time by layer, against random orders of the steps"


def pages(results, options):
    results.need("locality", "locality", "locality_within", "locality_permuted")
    return [("locality", functools.partial(draw, results))]


def draw(results):
    own, random, heads = (style.line_style(k) for k in range(3))
    fig, axes = style.frame(
        "Locality of attention in time", f"{results.subtitle}\nvariance of an entry's attention "
        "within windows of 16 steps over its variance over all steps, summed over prompt entries; "
        "for any series the first is at most the second, so random orders are the comparison",
        1, 2, 2.1, [style.key("steps as they are", own),
                    style.key("random orders of the steps", random),
                    style.key("locality, mean over heads", heads),
                    style.key("one head", style.DOTS)], ("layer of the model", ""))
    for name, look in (("locality_within", own), ("locality_permuted", random)):
        values = results.variable(name, "layer", "head").mean("head")
        axes[0, 0].plot(values.layer, values, **look)
    axes[0, 0].set_title("variance within windows / total variance, mean over heads")
    axes[0, 0].set_ylabel("fraction")
    axes[0, 0].set_ylim(0, 1.02)
    values = results.variable("locality", "layer", "head")
    style.dots_by_layer(axes[0, 1], values, heads)
    axes[0, 1].axhline(0, color="black", linewidth=0.7, linestyle=":")
    axes[0, 1].set_title("locality: 0 is white noise, 1 slow change")
    axes[0, 1].set_ylim(top=1.02)
    if values.isnull().all():
        style.note_undefined(axes[0, 1])
    for ax in axes[0]:
        style.layer_axis(ax, results)
    return fig
