"""Maps of numbers that would be long tables: a row per pair or policy, a column per budget, a panel per length."""

import matplotlib
import numpy as np

from kvsim.plots import style

GREY = (0.93, 0.93, 0.93, 1)   # nothing was run
DOUBLINGS = 3                  # of a ratio, at which a colour is darkest


def ratio(value, mark=""):
    """A cell of a ratio: blue below 1, red above."""
    digits = 0 if value >= 10 else 2 + (value < 0.01) + (value < 0.001)
    return f"{value:.{digits}f}{mark}", np.log2(value) / DOUBLINGS


def draw(title, subtitle, found, label=""):
    """`found`: {row: {(tokens, budget): (text, shade)}}, shades from -1, blue, to 1, red."""
    lengths = sorted({tokens for of in found.values() for tokens, _ in of})
    budgets = {tokens: sorted({budget for of in found.values() for at, budget in of if at == tokens})
               for tokens in lengths}
    fig, axes = style.frame(title, subtitle, 1, len(lengths), 0.5 + 0.15 * len(found), (),
                            ("budget (fraction of the prompt kept)", label),
                            width_ratios=[len(budgets[tokens]) for tokens in lengths])
    colours = matplotlib.colormaps["RdBu_r"]
    for ax, tokens in zip(axes.flat, lengths):
        image = np.full((len(found), len(budgets[tokens]), 4), GREY)
        for i, of in enumerate(found.values()):
            for k, budget in enumerate(budgets[tokens]):
                if (tokens, budget) not in of:
                    continue
                text, shade = of[tokens, budget]
                image[i, k] = colours(np.clip(0.5 + shade / 2, 0.08, 0.92))
                dark = np.dot(image[i, k, :3], (0.299, 0.587, 0.114)) < 0.5
                ax.text(k, i, text, ha="center", va="center", fontsize=4.6, color="white" if dark else "black")
        ax.imshow(image, aspect="auto", interpolation="nearest")
        ax.set_xticks(range(len(budgets[tokens])), [f"{budget:g}" for budget in budgets[tokens]])
        ax.set_yticks(range(len(found)), list(found) if ax is axes.flat[0] else [""] * len(found), fontsize=4.8)
        ax.set_title(f"{tokens // 100 * 100} tokens")
        ax.grid(False)
        ax.tick_params(length=0)
    return fig
