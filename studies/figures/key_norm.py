"""Norms of keys by position, and whether short keys get the attention (The Pitfalls, appendix J.5;
Knorm drops the long ones).
"""

import numpy as np

from .. import style
from .by_layer import DOTS, dots_by_layer, layer_ticks

TITLE = "key norms by position, and their correlation with attention and position, by layer"
NEEDS = ("key_norm", "key_norm_position", "key_norm_attention_spearman")
LACKING = "no key_norm; kvsim replay --metric key_norm measures it"


def draw(results, options):
    norms = results.variable("key_norm", "layer", "kv_head", "part").mean("kv_head")
    parts, layers = results.data["part"].values, results.layers
    fig, axes = style.frame(
        "Key norms", f"{results.subtitle}\nleft: L2 norm of the keys, mean over KV heads, over the "
        "layer's median; middle: norm and mean attention of later steps, per query head; right: "
        "norm and position, per KV head", 1, 3, 2.3,
        [style.key("one head", DOTS), style.key("mean over heads", style.line_style(0))])
    image_of, *correlations = axes[0]
    ratio = norms / norms.median("part")
    off = abs(ratio - 1).values[np.isfinite(ratio)]
    off = max(0.05, float(np.percentile(off, 98))) if off.size else 1.0
    image = image_of.imshow(ratio, aspect="auto", cmap="viridis", vmin=1 - off, vmax=1 + off,
                            interpolation="nearest",
                            extent=(parts[0], parts[-1], len(layers) - 0.5, -0.5))
    fig.colorbar(image, ax=image_of, location="bottom", pad=0.02, fraction=0.06,
                 label="norm / median")
    layer_ticks(image_of.yaxis, results)
    image_of.grid(False)
    image_of.set(title="key norm by position", xlabel="position (tokens)", ylabel="layer of the model")
    for ax, name, dim, title in zip(
            correlations, ("key_norm_attention_spearman", "key_norm_position"), ("head", "kv_head"),
            ("with attention (< 0: short keys win)", "with position (> 0: early keys are short)")):
        dots_by_layer(ax, results, results.variable(name, "layer", dim), style.line_style(0))
        ax.set(title=title, ylim=(-1.02, 1.02), xlabel="layer of the model")
    correlations[0].set_ylabel("Spearman's rank correlation")
    return fig
