"""Two hyper-parameters of a preset against each other: every cell is one setting, the other axes at
their defaults. Darker is worse; framed is the default, a star marks the best of each map.
"""

import functools

import matplotlib
import numpy as np

from .. import grid, load, style

TITLE = "sweeps: heat map over two hyper-parameters, per metric and budget"
READS = "several"
ALONE = True  # one file of a sweep is enough
MOST_MAPS = 4


def pages(files, options):
    found = grid.grids(files, options)
    planned = []
    for stem, one in zip(grid.stems("sensitivity_map", found), found):
        planes = one.planes()
        names = [stem if len(planes) == 1 else f"{stem}-{'-'.join(rows.keys + columns.keys)}"
                 for rows, columns, _ in planes]
        planned += [(name, functools.partial(draw, one, plane))
                    for name, plane in zip(names, planes)]
    if not planned:
        raise load.NotMeasured(f"{files[0].path}: no two axes that are crossed")
    return planned


def draw(one, plane):
    rows, columns, table = plane
    labels, metrics = one.budgets(), one.metrics()
    shown = grid.spread(labels, MOST_MAPS)
    height = max(1.15, 0.4 + 0.15 * len(rows.values))
    fig, axes = style.frame(
        f"{one.preset}: {rows.name} against {columns.name}",
        f"{one.subtitle}\nrows: {rows.name}; darker is worse, each map has "
        f"its own scale; frame: default; *: best{grid.left_out(labels, shown)}",
        len(metrics), len(shown), height, (),
        (columns.name, ""))
    for line, metric in zip(axes, metrics):
        values = one.over_traces(metric)
        for ax, label in zip(line, shown):
            known = values.sel(budget=label).to_series()
            cells = np.reshape([known.get(record, np.nan) for record in table.flat], table.shape)
            heat_map(ax, cells, metric.more_is_better)
            frame_default(ax, rows, columns)
            ticks(ax, rows, columns)
        line[0].set_ylabel(metric.label, fontsize=6)
    for ax, label in zip(axes[0], shown):
        ax.set_title("budget " + one.budget_text(label).replace(" (", "\n("))
    return fig


def heat_map(ax, cells, more_is_better):
    worse = -cells if more_is_better else cells
    low, high = np.nanmin(worse), np.nanmax(worse)
    scaled = (worse - low) / (high - low) if high > low else np.zeros_like(worse)
    image = matplotlib.colormaps["Blues"](0.9 * np.nan_to_num(scaled))
    image[np.isnan(cells)] = (0.93, 0.93, 0.93, 1)
    ax.imshow(image, aspect="auto", interpolation="nearest")
    largest = np.nanmax(np.abs(cells))
    digits = 4 if largest < 0.1 else 3 if largest < 10 else 1
    for i, k in np.ndindex(cells.shape):
        if np.isnan(cells[i, k]):
            continue
        text, best = f"{cells[i, k]:.{digits}f}".removeprefix("0"), worse[i, k] == low
        dark = np.dot(image[i, k, :3], (0.299, 0.587, 0.114)) < 0.5
        ax.text(k, i, text + ("*" if best else ""), ha="center", va="center",
                fontsize=5, color="white" if dark else "black",
                fontweight="bold" if best else "normal")
    ax.grid(False)
    ax.tick_params(length=0)


def frame_default(ax, rows, columns):
    if rows.base in rows.values and columns.base in columns.values:
        corner = (columns.values.index(columns.base) - 0.5, rows.values.index(rows.base) - 0.5)
        ax.add_patch(matplotlib.patches.Rectangle(corner, 1, 1, fill=False, color="black",
                                                  linewidth=1.2, clip_on=False))


def ticks(ax, rows, columns):
    texts = [columns.text(value) for value in columns.values]
    long = sum(map(len, texts)) > 26
    ax.set_xticks(range(len(texts)), texts, rotation=40 if long else 0, fontsize=5.5,
                  ha="right" if long else "center", rotation_mode="anchor")
    ax.set_yticks(range(len(rows.values)), [rows.text(value) for value in rows.values],
                  fontsize=5.5)
