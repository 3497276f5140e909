"""Keep rate by layer and budget, a map per policy and span (Pitfalls, Figure 27).

A cell is the share of a span's entries that a layer keeps at a budget, mean over KV heads; layers
upward, budgets to the right. Where a policy is unbiased every layer has the colour of the
budget, which the last column of maps shows as that of all prompt entries together.
"""

import functools

import xarray

from .. import load, style

TITLE = "keep rate per layer and budget, a map per policy and span"
ROWS = 6       # policies of a page
MAPS = 4       # spans of a page
ALL = "all prompt entries"


def pages(results, options):
    if not results.has("keep_rate", "bias_index") or not results.spans:
        raise load.NotMeasured(f"{results.path}: no labelled spans")
    if results.budgets.size < 2:
        raise load.NotMeasured(f"{results.path}: one budget only")
    groups = [(policies, spans) for spans in style.groups(results.spans, MAPS)
              for policies in style.groups(load.competitors(results.policies), ROWS)]
    return style.pages("keep_rate_ratios", groups, functools.partial(draw, results))


def maps(results):
    """[policy, span or all, layer, budget], the smallest budget first; NaN where a span is empty."""
    dims = ("policy", "span", "layer", "budget")
    rates, bias = results.variable("keep_rate", *dims), results.variable("bias_index", *dims)
    whole = (rates - bias).max("span").expand_dims(span=[ALL])   # the same of every span
    return xarray.concat([rates, whole], "span").transpose(*dims).sortby("budget")


def draw(results, group, note):
    policies, spans = group
    values = maps(results)
    budgets = values.budget.values
    columns = [*spans, ALL]
    titles = [style.wrapped(policy, 18) for policy in policies]
    longest = max(len(line) for title in titles for line in title.split("\n"))
    fig, axes = style.frame(
        f"Keep rate by layer and budget{note}",
        f"{results.subtitle}\nshare of the span's entries that a layer keeps, mean over KV heads",
        len(policies), len(columns),
        max(1.05, 0.42 + 0.02 * len(results.layers), 0.2 + 0.052 * longest), (),
        (style.budget_label(results), ""), sharex=True, sharey=True)
    image, table = None, []
    for row, policy, title in zip(axes, policies, titles):
        for ax, column in zip(row, columns):
            cells = values.sel(policy=policy, span=column).values
            image = ax.imshow(cells, aspect="auto", origin="lower", cmap="viridis", vmin=0, vmax=1,
                              interpolation="nearest")
            every, wide = (max(1, size // 5) for size in cells.shape)
            ax.set_yticks(range(0, len(results.layers), every), results.layers[::every])
            ax.set_xticks(range(0, len(budgets), wide), [f"{one:.3g}" for one in budgets[::wide]])
            ax.grid(False)
            table += [[policy, column, layer, *line] for layer, line in zip(results.layers, cells)]
        row[0].set_ylabel(f"{title}\nlayer", fontsize=6)
    for ax, column in zip(axes[0], columns):
        ax.set_title(style.wrapped_lines(column, style.characters(114) // len(columns), max_lines=3, placeholder=" …"))
    fig.colorbar(image, ax=list(axes.flat), label="keep rate", pad=0.01, fraction=0.03)
    style.numbers(fig, ["policy", "span", "layer", *(f"budget {one:.3g}" for one in budgets)], table)
    return fig
