"""Worst case, mean and outliers of each policy over several traces (DefensiveKV, Table 1).

`traces` has a row per policy: small marks are traces, the bar is their mean, the line its 95 %
bootstrap interval over traces. `traces-table` has the numbers of every trace. With a single trace
the interval is over blocks of 16 steps.
"""

import functools

import numpy as np

from .. import load, statistics, style

TITLE = "worst case, mean and outliers over several traces, with bootstrap intervals"
READS = "several"
NEEDED = "retained_importance"


def pages(several, options):
    for results in several:
        if not results.has(NEEDED):
            raise load.NotMeasured(f"{results.path}: no variable {NEEDED}")
    policies = [one for one in load.common_policies(several) if not style.is_full(one)]
    if not policies:
        raise load.NotMeasured("no policy that drops entries")
    groups = [policies[first:first + 26] for first in range(0, len(policies), 26)]
    return style.pages("traces", groups, functools.partial(draw, several, options)) + \
        style.pages("traces-table", groups, functools.partial(draw_table, several, options))


def below(values, axes):
    """Share of (layer, step) pairs whose value is below 0.5, in percent."""
    return 100 * np.mean(values < 0.5, axis=axes)


# column, what of the values over (layer, step), unit
MEASURES = (
    ("worst step\nof all layers", lambda v: v.min(axis=(-2, -1)), "fraction"),
    ("worst step,\nmean over layers", lambda v: v.min(axis=-1).mean(axis=-1), "fraction"),
    ("mean over\nlayers and steps", lambda v: v.mean(axis=(-2, -1)), "fraction"),
    ("below 0.5, of\n(layer, step) pairs", lambda v: below(v, (-2, -1)), "%"),
)


def measured(several, options, policies):
    """(values, means, intervals): [measure, policy, trace], [measure, policy], [2, ...]."""
    curves = [results.variable(NEEDED, "policy", "budget", "layer", "step")
              [[results.policies.index(one) for one in policies],
               results.nearest_budget(options.budget)] for results in several]
    values = np.array([[of(curve) for curve in curves] for _, of, _ in MEASURES])
    values = values.transpose(0, 2, 1)
    if len(several) > 1:
        return (values, *statistics.over_traces(values))
    steps = statistics.resampled_steps(curves[0].shape[-1])
    # One measure at a time over all resamples would need [1000, policy, layer, step] at once.
    resampled = np.array([[of(curves[0][..., one]) for one in steps] for _, of, _ in MEASURES])
    return values, values[..., 0], statistics.interval(resampled.transpose(0, 2, 1))


def titles(several, options):
    budgets = {results.budget_text(results.nearest_budget(options.budget)) for results in several}
    models = {results.model for results in several}
    if len(several) == 1:
        return ", ".join(sorted(budgets)), several[0].subtitle + \
            "; intervals: 95 % bootstrap over blocks of 16 steps"
    return ", ".join(sorted(budgets)), f"{', '.join(sorted(models))}, {len(several)} traces; " \
        "bar and line: mean over traces and its 95 % bootstrap interval"


def marked(several, options, policies, values):
    """[measure, policy]: does the interval of the difference from the first policy exclude 0?"""
    if len(several) < 2:
        return np.zeros(values.shape[:2], bool)
    _, (low, high) = statistics.over_traces(values - values[:, :1])
    return (low > 0) | (high < 0)


def draw(several, options, policies, note):
    values, means, (low, high) = measured(several, options, policies)
    differs = marked(several, options, policies, values)
    labels, size, row = style.row_labels(policies)
    budgets, subtitle = titles(several, options)
    looks = [{"color": style.COLOURS[i % 10], "marker": style.MARKERS[i % 10], "markersize": 3,
              "linestyle": "", "fillstyle": "full" if i < 10 else "none",
              "markeredgewidth": 0.4} for i in range(len(several))]
    star = "; *: differs from the first row, 95 % interval of the difference over traces" \
        if differs.any() else ""
    fig, axes = style.frame(
        f"Retained importance over traces at budget {budgets}{note}", subtitle + star,
        1, 4, 0.75 + max(row, 0.29) * len(policies),
        [style.key(name, look) for name, look in zip(load.names(several), looks)], sharey=True)
    for m, (ax, (title, _, unit)) in enumerate(zip(axes.flat, MEASURES)):
        for k, look in enumerate(looks):
            ax.plot(values[m, :, k], np.arange(len(policies)), zorder=2, **look)
        for p in range(len(policies)):
            ax.plot([low[m, p], high[m, p]], [p + 0.24] * 2, color="black", linewidth=0.9)
            ax.plot(means[m, p], p + 0.24, marker="|", color="black", markersize=6)
            ax.annotate(text(means[m, p], low[m, p], high[m, p], unit) + "*" * int(differs[m, p]),
                        (0.5, p + 0.24), xycoords=("axes fraction", "data"), fontsize=5,
                        xytext=(0, -2.6), textcoords="offset points", ha="center", va="top")
        ax.set(title=title, xlabel=unit)
        ax.set_xlim(0, 1.0 if unit == "fraction" else None)
        ax.grid(axis="y", visible=False)
    axes[0, 0].set_yticks(range(len(policies)), labels, fontsize=size)
    axes[0, 0].set_ylim(len(policies) - 0.25, -0.4)
    style.numbers(fig, ["policy", "measure", "mean", "low", "high", "differs",
                        *load.names(several)],
                  [[policy, title.replace("\n", " "), means[m, p], low[m, p], high[m, p],
                    int(differs[m, p]), *values[m, p]]
                   for m, (title, _, _) in enumerate(MEASURES)
                   for p, policy in enumerate(policies)])
    return fig


def text(mean, low, high, unit):
    if np.isnan(mean):
        return "undefined"
    digits = 1 if unit == "%" else 3
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def draw_table(several, options, policies, note):
    values, means, _ = measured(several, options, policies)
    labels, size, row = style.row_labels(policies)
    budgets, subtitle = titles(several, options)
    shown = (0, 2, 3)
    fig, axes = style.frame(f"Retained importance of each trace at budget {budgets}{note}",
                            subtitle.split(";")[0] + "; darker is worse", 3, 1,
                            0.5 + row * len(policies), sharex=True)
    for ax, m in zip(axes.flat, shown):
        title, _, unit = MEASURES[m]
        shades = values[m] if unit == "%" else 1 - values[m]
        style.number_map(ax, np.column_stack([values[m], means[m]]), shades,
                         25.0 if unit == "%" else 1.0, "{:.1f}" if unit == "%" else "{:.2f}")
        ax.set_title(f"{title} ({unit})".replace("\n", " "))
        ax.set_yticks(range(len(policies)), labels, fontsize=size)
        ax.set_xticks(range(len(several) + 1), [*map(style.narrow, load.names(several)), "mean"],
                      fontsize=5.5)
    return fig
