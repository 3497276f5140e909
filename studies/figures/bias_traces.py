"""Bias index of each span at one budget in every trace, with mean and interval over the traces: a
column per order of the spans and span, a row per policy.
"""

import functools

import numpy as np

from ...plain import counted
from .. import load, statistics, style
from .keep_rate_traces import narrow, of_files, orders
from .traces import mean_row

TITLE = "bias index per span at one budget, every trace and the mean over traces"
READS = "several"
POOLS = True


def pages(several, options):
    policies = load.competitors(load.common_policies(several))
    return {"bias_traces": functools.partial(draw, several, orders(several), options, policies)}


def draw(several, rows, options, policies):
    panels = []
    for name, files in rows.items():
        budget = files[0].nearest_budget(options.budget)
        keep, unbiased = (each.sel(budget=budget) for each in of_files(files, policies))
        panels += [(f"{span}\n{narrow(name, 26)}", (keep.sel(span=span) - unbiased).values)
                   for span in files[0].spans]
    labels, size, row = style.row_labels(policies)
    budgets = {results.budget_text(results.nearest_budget(options.budget)) for results in several}
    models = ", ".join(sorted({results.model for results in several}))
    grid_rows, columns = style.panel_grid(len(panels), 4)
    lines = max(title.count("\n") for title, _ in panels)
    fig, axes = style.frame(
        f"Bias index of each span at budget {', '.join(sorted(budgets))}, mean over layers",
        f"{models}, {counted(len(several), 'trace')}; circles: traces; bar and line: mean over traces and its "
        "95 % interval (t)\nbias index: keep rate of the span − share of all entries kept; "
        "0 is unbiased", grid_rows, columns, 0.35 + 0.1 * lines + max(row, 0.26) * len(policies),
        (), ("bias index (fraction of the span)", ""), sharex=True, sharey=True)
    limit = max(0.1, 1.1 * max(float(np.nanmax(np.abs(values))) for _, values in panels))
    table = []
    for ax, (title, values) in zip(axes.flat, panels):
        mean, (low, high) = statistics.over_traces(values)
        for p in range(len(policies)):
            ax.plot(values[p], np.full(values.shape[1], p), "o", markersize=3, fillstyle="none",
                    color=style.COLOURS[0], markeredgewidth=0.6, zorder=2)
            mean_row(ax, p, mean[p], low[p], high[p], f"{mean[p]:+.2f} [{low[p]:+.2f}, {high[p]:+.2f}]")
            table.append([policies[p], title.replace("\n", " "), mean[p], low[p], high[p],
                          *values[p], *[None] * (len(several) - values.shape[1])])
        ax.axvline(0, **style.DOTTED)
        ax.set_title(title, fontsize=6)
        ax.set_xlim(-limit, limit)
    for ax in axes[:, 0]:
        ax.set_yticks(range(len(policies)), labels, fontsize=size)
        ax.set_ylim(len(policies) - 0.25, -0.4)
    style.hide_unused(axes, len(panels))
    style.numbers(fig, ["policy", "span", "mean", "low", "high",
                        *(f"trace {at}" for at in range(1, len(several) + 1))], table)
    return fig
