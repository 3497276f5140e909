"""Two hyper-parameters of a preset against each other: every cell is one setting, the other axes at
their defaults. Darker is worse; framed is the default, a star marks the best of each map."""

import functools

import matplotlib
import numpy as np

from .. import grid, load, style

TITLE = "sweeps: heat map over two hyper-parameters, per metric and budget"
READS = "several"
ALONE = True  # one file of a sweep is enough
MOST_MAPS = 4


def pages(files, options):
    planned = {}
    for stem, one in grid.grids("sensitivity_map", files, options).items():
        planes = one.planes()
        planned |= {stem if len(planes) == 1 else f"{stem}-{'-'.join(rows.keys + columns.keys)}":
                    functools.partial(draw, one, rows, columns, table) for rows, columns, table in planes}
    if not planned:
        raise load.NotMeasured(f"{files[0].path}: no two axes that are crossed")
    return planned


def draw(one, rows, columns, table):
    shown = style.spread(one.budgets, MOST_MAPS)
    metrics = one.metrics()
    fig, axes = style.frame(
        f"{one.preset}: {rows.name} against {columns.name}",
        f"{one.subtitle}\nrows: {rows.name}; darker is worse, each map has "
        f"its own scale; frame: default; *: best{one.left_out(shown)}", len(metrics), len(shown),
        max(1.15, 0.4 + 0.15 * len(rows.values)), (), (columns.name, ""))
    across, down = ([", ".join(value) for value in axis.values] for axis in (columns, rows))
    for line, metric in zip(axes, metrics):
        values = one.over_traces(metric)
        for ax, label in zip(line, shown):
            known = values.sel(budget=label).to_series()
            cells = np.reshape([known.get(record, np.nan) for record in table.flat], table.shape)
            heat_map(ax, cells, metric.more_is_better)
            if rows.base in rows.values and columns.base in columns.values:
                corner = (columns.values.index(columns.base) - 0.5, rows.values.index(rows.base) - 0.5)
                ax.add_patch(matplotlib.patches.Rectangle(corner, 1, 1, fill=False, color="black",
                                                          linewidth=1.2, clip_on=False))
            style.slanted_ticks(ax, range(len(across)), across, sum(map(len, across)) > 26, fontsize=5.5)
            ax.set_yticks(range(len(down)), down, fontsize=5.5)
        line[0].set_ylabel(one.label(metric), fontsize=6)
    for ax, label in zip(axes[0], shown):
        ax.set_title("budget " + one.budget_text(label).replace(" (", "\n("))
    return fig


def heat_map(ax, cells, more_is_better):
    worse = -cells if more_is_better else cells
    low, high = np.nanmin(worse), np.nanmax(worse)
    largest = np.nanmax(np.abs(cells))
    digits = 4 if largest < 0.1 else 3 if largest < 10 else 1
    best = cells[worse == low]
    style.number_map(ax, cells, 0.9 * (worse - low), high - low or 1, missing=" ", size=5, bold=best,
                     text=lambda value: f"{value:.{digits}f}".removeprefix("0") + "*" * (value in best))
