"""Bias index of each span at one budget in every trace, with mean and interval over the traces: a
column per order of the spans and span, a row per policy.
"""

import functools

import numpy as np

from ...plain import counted
from .. import load, statistics, style
from .keep_rate_traces import of_files, orders

TITLE = "bias index per span at one budget, every trace and the mean over traces"
READS = "several"
POOLS = True


def pages(several, options):
    rows = orders(several)
    groups = [load.competitors(load.common_policies(several))]
    return style.pages("bias_traces", groups, functools.partial(draw, several, rows, options))


def draw(several, rows, options, policies, note):
    panels = []
    for name, files in rows.items():
        budget = files[0].nearest_budget(options.budget)
        keep, unbiased = (each.sel(budget=budget) for each in of_files(files, policies))
        panels += [(f"{span}\n{style.narrow(name, 26)}", (keep.sel(span=span) - unbiased).values)
                   for span in files[0].spans]
    labels, size, row = style.row_labels(policies)
    budgets = {results.budget_text(results.nearest_budget(options.budget)) for results in several}
    models = ", ".join(sorted({results.model for results in several}))
    grid_rows, columns = style.panel_grid(len(panels), 4)
    lines = max(title.count("\n") for title, _ in panels)
    fig, axes = style.frame(
        f"Bias index of each span at budget {', '.join(sorted(budgets))}, mean over layers{note}",
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
            ax.plot([low[p], high[p]], [p + 0.24] * 2, color="black", linewidth=0.9)
            ax.plot(mean[p], p + 0.24, marker="|", color="black", markersize=6)
            ax.annotate(f"{mean[p]:+.2f} [{low[p]:+.2f}, {high[p]:+.2f}]", (0.5, p + 0.24),
                        xycoords=("axes fraction", "data"), fontsize=5, xytext=(0, -2.6),
                        textcoords="offset points", ha="center", va="top",
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3})
            table.append([policies[p], title.replace("\n", " "), mean[p], low[p], high[p],
                          *values[p], *[None] * (len(several) - values.shape[1])])
        ax.axvline(0, color="black", linewidth=0.7, linestyle=":")
        ax.set_title(title, fontsize=6)
        ax.set_xlim(-limit, limit)
        ax.grid(axis="y", visible=False)
    for ax in axes[:, 0]:
        ax.set_yticks(range(len(policies)), labels, fontsize=size)
        ax.set_ylim(len(policies) - 0.25, -0.4)
    style.hide_unused(axes, len(panels))
    style.numbers(fig, ["policy", "span", "mean", "low", "high",
                        *(f"trace {at}" for at in range(1, len(several) + 1))], table)
    return fig
