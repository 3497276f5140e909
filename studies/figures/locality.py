"""Is attention local in time? Variance within windows of 16 steps against random orders of the
steps (KeepKV, Figure 2c, with the comparison that the figure lacks).
"""

from .. import style
from .by_layer import DOTS, dots_by_layer, layer_axis

TITLE = "locality of attention in time by layer, against random orders of the steps"
NEEDS = ("locality", "locality_within", "locality_permuted")
LACKING = "no locality; kvsim replay --metric locality measures it"


def draw(results, options):
    looks = dict(zip(("steps as they are", "random orders of the steps", "locality, mean over heads"),
                     map(style.line_style, range(3)))) | {"one head": DOTS}
    local, *variances = (results.variable(name, "layer", "head") for name in NEEDS)
    fig, axes = style.frame(
        "Locality of attention in time", f"{results.subtitle}\nvariance of an entry's attention "
        "within windows of 16 steps over its variance over all steps, summed over prompt entries; "
        "for any series the first is at most the second, so random orders are the comparison",
        1, 2, 2.1, [style.key(*one) for one in looks.items()], ("layer of the model", ""))
    own, random, mean, _ = looks.values()
    for values, look in zip(variances, (own, random)):
        axes[0, 0].plot(values.layer, values.mean("head"), **look)
    axes[0, 0].set(title="variance within windows / total variance, mean over heads", ylabel="fraction",
                   ylim=(0, 1.02))
    dots_by_layer(axes[0, 1], results, local, mean)
    axes[0, 1].set(title="locality: 0 is white noise, 1 slow change")
    axes[0, 1].set_ylim(top=1.02)
    layer_axis(axes[0, 0], results)
    return fig
