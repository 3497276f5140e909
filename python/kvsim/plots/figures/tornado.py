"""How much each hyper-parameter of a preset matters: a bar from the worst to the best value along
its axis, as differences from the default setting, the widest on top."""

import functools

from matplotlib.patches import Patch

from .. import grid, style

TITLE = "sweeps: effect of each hyper-parameter on the metrics, the largest on top"
READS = "several"
ALONE = True  # one file of a sweep is enough
LOOKS = {True: {"facecolor": style.COLOURS[0], "edgecolor": "white", "linewidth": 0},
         False: {"facecolor": style.COLOURS[1], "edgecolor": "white", "linewidth": 0,
                 "hatch": "////"}}


def pages(files, options):
    return {stem: functools.partial(draw, one, options) for stem, one in grid.grids("tornado", files, options).items()}


def effects(one, metric, budget):
    """[(line, least, most)]: (difference from the default, value of the axis), widest first."""
    values = one.over_traces(metric).sel(budget=budget).to_series()
    rows = []
    for line in one.lines():
        along = [(values[record], ", ".join(value)) for value, record in line.records.items()]
        middle = values[one.base] if one.base is not None else sorted(along)[len(along) // 2][0]
        along = [(value - middle, text) for value, text in along]
        rows.append((line, min(along), max(along)))
    return sorted(rows, key=lambda row: row[1][0] - row[2][0])


def draw(one, options):
    budget = one.nearest_budget(options.budget)
    metrics = one.metrics()
    fig, axes = style.panels(
        f"Effect of {one.preset}'s hyper-parameters at budget {one.budget_text(budget)}",
        f"{one.subtitle}\nbars: from the least to the most along an axis, the "
        "others at their defaults; beside them the values that give it", len(metrics), 2,
        0.55 + 0.24 * len(one.lines()),
        [Patch(label=f"{'better' if better else 'worse'} than the default", **look)
         for better, look in LOOKS.items()])
    for ax, metric in zip(axes, metrics):
        panel(ax, metric, effects(one, metric, budget))
        ax.set_title(one.label(metric).replace("\n", " "))
    return fig


def panel(ax, metric, rows):
    spread = max(max(abs(low[0]), abs(high[0])) for _, low, high in rows) or 1
    for y, (_, low, high) in enumerate(rows):
        for begin, end, better in ((min(low[0], 0), min(high[0], 0), not metric.more_is_better),
                                   (max(low[0], 0), max(high[0], 0), metric.more_is_better)):
            ax.barh(y, end - begin, left=begin, height=0.62, **LOOKS[better])
        if low[0] < high[0]:
            pad = 0.03 * spread
            ax.text(min(low[0], 0) - pad, y, low[1], ha="right", va="center", fontsize=5.5)
            ax.text(max(high[0], 0) + pad, y, high[1], ha="left", va="center", fontsize=5.5)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_xlim(-1.45 * spread, 1.45 * spread)
    ax.set_yticks(range(len(rows)), [line.name for line, _, _ in rows])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("difference from the default")
