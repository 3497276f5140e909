"""The prompt as one step saw it: what carried importance, and what the policy had evicted.

Reads what `kvsim explain --json` prints. Above, importance by position; below, the text of the
prompt. Depth of colour is importance; a line through a token says that no head kept it, a line
under it that some heads did not. Spaces are part of the tokens; line ends are shown as a sign."""

import numpy as np
from matplotlib.patches import Patch, Rectangle
from matplotlib.lines import Line2D

from ...plain import printable
from .. import style

TITLE = "the prompt coloured by kept, evicted and importance at one step"
READS = "explain"
KEPT, LOST = "#0072B2", "#E69F00"   # dark and light in black and white, too
POINTS = 5.2                             # font size of the prompt
CHARACTER = 0.602 * POINTS / 72          # inches; the advance of DejaVu Sans Mono
LINE = 0.105                             # inches
MARGIN = 0.1                             # inches
MOST_TOKENS = 8000                       # of the text; later ones are only in the upper panel


def draw(document, options):
    data = document.data
    prompt = data["prompt"]
    importance = np.array([token["importance"] for token in prompt])
    lost = np.array([token["lost"] for token in prompt])
    places, lines = layout([visible(token["text"]) for token in prompt[:MOST_TOKENS]])
    step = f"step {data['step']}"
    if data["step_text"]:
        step += f' ("{visible(data["step_text"])}")'
    keys = [Patch(color=KEPT, label="importance that was mostly kept"),
            Patch(color=LOST, label="importance that was mostly lost"),
            Line2D([], [], color="black", linewidth=0.7, label="struck out: no head kept it; "
                   "underlined: some heads did not")]
    fig, axes = style.frame(
        f"What {data['policy']} lost at budget {data['budget']}, layer {data['layer']}, {step}",
        f"{data['model']}, n = {len(prompt)} prompt tokens, trace {data['trace']}; retained "
        f"importance {data['retained_importance']:.3f}", 2, 1,
        (1.4 + lines * LINE + 0.2) / 2, keys, height_ratios=[1.4, lines * LINE + 0.2])
    profile(axes[0, 0], importance, lost, data["lost"])
    text(axes[1, 0], prompt[:MOST_TOKENS], places, lines, importance, data["heads"])
    return fig


def visible(word):
    return printable(word.replace("\n", "\u23ce").replace("\t", "\u2192"))


def layout(words):
    """(line, column) of each word in a fixed-width font, and the number of lines."""
    width = int((style.width() - 2 * MARGIN) / CHARACTER)
    places, line, column = [], 0, 0
    for word in words:
        length = max(1, len(word))
        if column + length > width and column > 0:
            line, column = line + 1, 0
        places.append((line, column))
        column += length
    return places, line + 1


def profile(ax, importance, lost, worst):
    """Stacked bars of kept and lost importance by position, on a square-root scale."""
    position = np.arange(importance.size)
    ax.vlines(position, 0, importance, color=KEPT, linewidth=1.2)
    shown = lost > 0
    ax.vlines(position[shown], 0, lost[shown], color=LOST, linewidth=1.2, zorder=3)
    ax.plot([one["position"] for one in worst], [one["lost"] for one in worst], "v", color=LOST,
            markersize=3, markeredgecolor="black", markeredgewidth=0.4, zorder=4, linestyle="none")
    ax.set_yscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
    ax.set(xlim=(-0.01 * importance.size, 1.01 * importance.size),
           ylim=(0, max(importance.max() * 1.1, 1e-6)),
           xlabel="position (tokens); triangles: the tokens that lost most",
           ylabel="share of importance\n(square-root scale)")


def text(ax, prompt, places, lines, importance, heads):
    width = (style.width() - 2 * MARGIN) / CHARACTER
    ax.set(xlim=(0, width), ylim=(lines, 0))
    ax.axis("off")
    top = np.sqrt(max(importance.max(), 1e-12))
    for token, (line, column) in zip(prompt, places):
        word = visible(token["text"]) or " "
        share = token["lost"] / token["importance"] if token["importance"] > 0 else 0.0
        depth = min(1.0, np.sqrt(token["importance"]) / top)
        colour = LOST if share > 0.5 else KEPT
        ax.add_patch(Rectangle((column, line), len(word), 0.94, facecolor=colour, alpha=0.75 * depth, edgecolor="none"))
        missing = heads - token["kept_heads"]
        if missing:
            height = line + (0.5 if missing == heads else 0.93)
            ax.plot([column, column + len(word)], [height, height], color="0.35", linewidth=0.35, marker="")
        ax.text(column, line + 0.74, word, family="DejaVu Sans Mono", fontsize=POINTS, color="black")
