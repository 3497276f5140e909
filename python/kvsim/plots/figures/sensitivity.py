"""Effect of each hyper-parameter of a preset: one column per axis of a sweep with the other axes at
their defaults, one row per metric, one line per budget. Dotted: the default.

Several results files of one sweep, one per trace, make one figure: lines are means over the traces
and bands reach from the least to the most."""

import functools

from .. import grid, style

TITLE = "sweeps: metrics along each hyper-parameter, the others at their defaults"
READS = "several"
ALONE = True  # one file of a sweep is enough
COLUMNS = 4
MOST_BUDGETS = 6


def pages(files, options):
    planned = {}
    for stem, one in grid.grids("sensitivity", files, options).items():
        if lines := one.lines():
            planned |= style.pages(stem, style.groups(lines, COLUMNS), functools.partial(draw, one))
    return planned


def draw(one, lines, note):
    shown = style.spread(one.budgets, MOST_BUDGETS)
    metrics = one.metrics()
    fig, axes = style.frame(
        f"Sensitivity of {one.preset}{note}", f"{one.subtitle}\ndotted: default"
        + ("; bands: least to most over traces" if one.traces > 1 else "") + one.left_out(shown),
        len(metrics), len(lines), 1.25,
        [style.key(one.budget_text(label), style.line_style(k)) for k, label in enumerate(shown)],
        sharey="row", sharex="col")
    for row, metric in zip(axes, metrics):
        values, means = (table.sel(budget=shown) for table in (one.values(metric), one.over_traces(metric)))
        for ax, line in zip(row, lines):
            draw_line(ax, line, values, means)
            if not metric.more_is_better:
                style.error_axis(ax, values)
        row[0].set_ylabel(one.label(metric), fontsize=6)
    for ax, bottom, line in zip(axes[0], axes[-1], lines):
        ax.set_title(line.name)
        bottom.set_xlabel(line.axis.name)
    return fig


def draw_line(ax, line, values, means):
    x, records = line.axis.numbers, list(line.records.values())
    ticks = [float(value[0]) for value in line.records] if x else list(range(len(records)))
    for k, own in enumerate(values.sel(policy=records).transpose("budget", "trace", "policy")):
        look = style.line_style(k)
        if own.trace.size > 1:
            ax.fill_between(ticks, own.min("trace"), own.max("trace"), alpha=0.12, linewidth=0, color=look["color"])
        ax.plot(ticks, means.sel(policy=records, budget=own.budget), **look)
    if x and ticks[0] > 0 and ticks[-1] / ticks[0] >= 20:
        ax.set_xscale("log")
        ax.minorticks_off()
    texts = [", ".join(value) for value in line.records]
    style.slanted_ticks(ax, ticks, texts, max(map(len, texts)) * len(texts) > 26)
    if line.axis.base in line.records:
        base = list(line.records).index(line.axis.base)
        ax.axvline(ticks[base], **{**style.DOTTED, "linewidth": 0.8}, zorder=1)
