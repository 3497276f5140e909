"""Norms of keys by position, and whether short keys get the attention (The Pitfalls, appendix J.5;
Knorm drops the long ones).

Needs `kvsim replay --metric key_norm`.
"""

import functools

import numpy as np


from .. import style

TITLE = "key norms by position, and their correlation with attention and position, by layer"


def pages(results, options):
    results.need("key_norm", "key_norm", "key_norm_position", "key_norm_attention_spearman")
    return [("key_norm", functools.partial(draw, results))]


def draw(results):
    norms = results.variable("key_norm", "layer", "kv_head", "part").mean("kv_head")
    parts, layers = results.data["part"].values, results.layers
    fig, axes = style.frame(
        "Key norms", f"{results.subtitle}\nleft: L2 norm of the keys, mean over KV heads, over the "
        "layer's median; middle: norm and mean attention of later steps, per query head; right: "
        "norm and position, per KV head", 1, 3, 2.3,
        [style.key("one head", style.DOTS), style.key("mean over heads", style.line_style(0))])
    ratio = norms / norms.median("part")
    off = abs(ratio - 1).values[np.isfinite(ratio)]
    off = max(0.05, float(np.percentile(off, 98))) if off.size else 1.0
    image = axes[0, 0].imshow(ratio, aspect="auto", cmap="viridis", vmin=1 - off, vmax=1 + off,
                              interpolation="nearest",
                              extent=(parts[0], parts[-1], len(layers) - 0.5, -0.5))
    fig.colorbar(image, ax=axes[0, 0], location="bottom", pad=0.02, fraction=0.06,
                 label="norm / median")
    every = max(1, len(layers) // 8)
    axes[0, 0].set_yticks(range(0, len(layers), every), layers[::every])
    axes[0, 0].grid(False)
    axes[0, 0].set(title="key norm by position", xlabel="position (tokens)",
                   ylabel="layer of the model")
    panels = (("key_norm_attention_spearman", "head", "with attention (< 0: short keys win)"),
              ("key_norm_position", "kv_head", "with position (> 0: early keys are short)"))
    for ax, (name, dim, title) in zip(axes[0, 1:], panels):
        values = results.variable(name, "layer", dim)
        style.dots_by_layer(ax, values, style.line_style(0))
        ax.axhline(0, color="black", linewidth=0.7, linestyle=":")
        ax.set(title=title, ylim=(-1.02, 1.02), xlabel="layer of the model")
        style.layer_axis(ax, results)
    axes[0, 1].set_ylabel("Spearman's rank correlation")
    return fig
