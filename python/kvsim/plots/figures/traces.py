"""Loss of policies over several traces: stream error, and the mean, worst case and outliers of
retained importance (DefensiveKV, Table 1); `--metric` chooses.

`traces` has a row per policy: small marks are traces, the bar is their mean, the line its 95 %
interval over traces (t); its CSV has the numbers of every trace. With a single trace the interval is
over circular blocks of its steps, of what is a mean over them."""

import functools
from typing import Callable, NamedTuple

import numpy as np

from ... import ranking
from ...plain import counted
from .. import load, measures, statistics, style

TITLE = "stream error, mean and outliers over several traces, with intervals"
READS = "several"
POOLS = True


class Column(NamedTuple):
    """A measure as it is shown; its variable has values over (layer, step), or over steps."""

    measure: str
    what: str
    of: Callable
    unit: str
    beside: bool = True    # stays when other measures are drawn, too
    short: str = ""        # for titles
    steps: Callable | None = None   # values per step whose mean, or its root, the column is
    root: bool = False

    @property
    def scale(self):
        """Of its intervals; percents are shares of `whole`."""
        return "log" if self.unit == "relative" else "share"

    @property
    def whole(self):
        return 100 if self.unit == "%" else 1

    @property
    def title(self):
        return f"{measures.words(self.measure)},\n{self.short or self.what}"

    @property
    def name(self):
        """In the CSV, where what has no measure before it is retained importance."""
        plain = self.measure == measures.BESIDE
        return self.what if plain else f"{measures.words(self.measure)}, {self.what}"


def layered_errors(measure):
    return (Column(measure, "mean over layers and steps", lambda v: v.mean(PAIRS), "relative",
                   steps=lambda v: v.mean("layer")),
            Column(measure, "worst step, mean over layers", lambda v: v.max("step").mean("layer"),
                   "relative"))


PAIRS = ["layer", "step"]
RETAINED = functools.partial(Column, "retained_importance")
COLUMNS = (
    Column("stream_error", "rms over steps", lambda v: np.sqrt((v ** 2).mean("step")), "relative",
           steps=lambda v: v ** 2, root=True),
    Column("stream_error", "worst step", lambda v: v.max("step"), "relative"),
    RETAINED("worst step of all layers", lambda v: v.min(PAIRS), "fraction", beside=False),
    RETAINED("worst step, mean over layers", lambda v: v.min("step").mean("layer"), "fraction", beside=False),
    RETAINED("mean over layers and steps", lambda v: v.mean(PAIRS), "fraction",
             steps=lambda v: v.mean("layer")),
    RETAINED("below 0.5, of (layer, step) pairs", lambda v: 100 * (v < 0.5).mean(PAIRS), "%",
             short="steps and layers below 0.5", steps=lambda v: (v < 0.5).mean("layer")),
    *layered_errors("output_error"),
    *layered_errors("residual_error"),
)


def pages(several, options):
    names = measures.of_files(several, options)
    there = [one for one in COLUMNS if all(results.has(one.measure) for results in several)]
    drawn = [one for name in names for one in there if one.measure == name and (one.beside or len(names) == 1)]
    if not drawn:
        raise load.NotMeasured(f"{several[0].path}: no variable {names[0] if names else measures.BESIDE}")
    policies = load.competitors(load.common_policies(several))
    budgets = {results.budget_text(results.nearest_budget(options.budget)) for results in several}
    said = f" at budget {', '.join(sorted(budgets))}"
    of = several[0].subtitle if len(several) == 1 else \
        f"{', '.join(sorted({one.model for one in several}))}, {counted(len(several), 'trace')}"
    about = of + measures.layers_note(several, names) + measures.held_note(several, policies, options.budget or "0.5")
    return {"traces": functools.partial(draw, several, options, policies, measures.title(names), said, about, drawn,
                                        [one for one in there if one not in drawn])}


def measured(several, options, columns, policies):
    """(values, means, intervals): [column, policy, trace], [column, policy], [2, ...]."""
    curves = {name: [values_of(results, name, options, policies) for results in several]
              for name in dict.fromkeys(one.measure for one in columns)}
    values = np.array([[one.of(curve) for curve in curves[one.measure]] for one in columns])
    values = values.transpose(0, 2, 1)
    if len(several) == 1:
        ends = [over_steps(one, curves[one.measure][0]) for one in columns]
        return values, values[..., 0], np.swapaxes(ends, 0, 1)
    means, ends = zip(*(statistics.over_traces(cells / one.whole, one.scale) for one, cells in zip(columns, values)))
    whole = np.array([one.whole for one in columns])[:, None]
    return values, whole * means, whole * np.swapaxes(ends, 0, 1)


def values_of(results, name, options, policies):
    """[policy, layer, step], or [policy, step] of what is of all layers together."""
    layered = ("layer",) if "layer" in results.data[name].dims else ()
    values = results.variable(name, "policy", "budget", *layered, "step")
    return values.sel(policy=policies, budget=results.nearest_budget(options.budget))


def over_steps(column, curve):
    """[2, policy]: the interval over the steps of one trace, by the program; NaN for extremes."""
    if column.steps is None:
        return np.full((2, curve.sizes["policy"]), np.nan)
    if curve.notnull().any():
        curve = curve.dropna("step", how="all")   # steps that were not evaluated
    series = column.steps(curve).transpose("policy", "step").values
    answer, = ranking.rank([ranking.contest(series, units="steps", scale=column.scale)])
    ends = np.array([[row["estimate"][end] for row in answer["rows"]] for end in ("low", "high")], float)
    return column.whole * (np.sqrt(ends) if column.root else ends)


def marked(several, columns, values):
    """[column, policy]: does the interval of the difference from the first policy exclude none?
    Errors differ by their ratio."""
    if len(several) < 2:
        return np.zeros(values.shape[:2], bool)
    logs = np.array([column.scale == "log" for column in columns])[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(logs, np.log(np.maximum(values, statistics.LEAST)), values)
    _, (low, high) = statistics.over_traces(own - own[:, :1])
    return (low > 0) | (high < 0)


def draw(several, options, policies, title, budgets, about, drawn, others):
    columns = drawn + others
    values, means, (low, high) = measured(several, options, columns, policies)
    differs = marked(several, columns, values)
    labels, size, row = style.row_labels(policies)
    looks = [style.mark_style(i) for i in range(len(several))]
    reading = "; intervals: 95 %, over circular blocks of steps" if len(several) == 1 else \
        "; bar and line: mean over traces (errors: geometric) and its 95 % interval (t)"
    star = "; *: differs from the first row, 95 % interval of the difference over traces" if differs.any() else ""
    fig, axes = style.panels(
        title + (" over traces" if len(several) > 1 else "") + budgets, about + reading + star,
        len(drawn), 4, 0.75 + max(row, 0.29) * len(policies),
        [style.key(name, look) for name, look in zip(load.names(several), looks)], sharey=True)
    for m, (ax, column) in enumerate(zip(axes, drawn)):
        for k, look in enumerate(looks):
            ax.plot(values[m, :, k], np.arange(len(policies)), zorder=2, **look)
        for p in range(len(policies)):
            mean_row(ax, p, means[m, p], low[m, p], high[m, p],
                     text(means[m, p], low[m, p], high[m, p], column.unit) + "*" * int(differs[m, p]))
        ax.set(title=column.title, xlabel=column.unit)
        if column.unit == "relative":
            style.error_axis(ax, values[m], "x")
        else:
            ax.set_xlim(0, 1.0 if column.unit == "fraction" else None)
    axes[0].set_yticks(range(len(policies)), labels, fontsize=size)
    axes[0].set_ylim(len(policies) - 0.25, -0.4)
    style.numbers(fig, ["policy", "measure", "mean", "low", "high", "differs",
                        *load.names(several)],
                  [[policy, column.name, means[m, p], low[m, p], high[m, p], int(differs[m, p]),
                    *values[m, p]]
                   for m, column in enumerate(columns) for p, policy in enumerate(policies)])
    return fig


def mean_row(ax, row, mean, low, high, words):
    """A mean with its interval below the marks of a row, and the words for it."""
    ax.plot([low, high], [row + 0.24] * 2, color="black", linewidth=0.9)
    ax.plot(mean, row + 0.24, marker="|", color="black", markersize=6)
    ax.annotate(words, (0.5, row + 0.24), xycoords=("axes fraction", "data"), fontsize=5,
                xytext=(0, -2.6), textcoords="offset points", ha="center", va="top",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3})
    ax.grid(axis="y", visible=False)


def text(mean, low, high, unit):
    if np.isnan(mean):
        return "undefined"
    form = {"%": ".1f", "relative": ".3g"}.get(unit, ".3f")   # no error is printed as 0.000
    if np.isnan(low):
        return f"{mean:{form}}"
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"
