"""Estimates of risk, and the dynamics of attention, over several traces: what the figures risk,
attention_cdf, late_importance, locality, drift, key_norm and importance_correlation show of one.

`risk_traces` has a row per estimate, `attention_traces` a panel per measure; small marks are
traces, the bar is their mean, the line its 95 % bootstrap interval over traces. Needs `kvsim replay
--metric` of any of these; a trace may have its measures in more than one results file.
"""

import functools

import numpy as np

from .. import load, statistics, style
from . import risk, traces

TITLE = "estimates of risk and dynamics of attention over several traces, with bootstrap intervals"
READS = "several"
RISK = "risk: "   # begins the titles of the first figure


def pages(several, options):
    of_trace = {}
    for results in several:
        of_trace.setdefault(results.data.attrs.get("trace_digest", results.trace), []) \
            .append(results)
    panels = [one for one in (measured(of_trace, options, *how) for how in MEASURES) if one]
    chosen = {"risk_traces": [one for one in panels if one[0].startswith(RISK)],
              "attention_traces": [one for one in panels if not one[0].startswith(RISK)]}
    if not panels:
        raise load.NotMeasured("no measure of risk or of attention in a file of every trace; kvsim "
                               "replay --metric risk,attention_cdf,late_importance,locality,"
                               "drift,key_norm measures them")
    names = load.names([files[0] for files in of_trace.values()])
    return [(page, functools.partial(draw, several[0], names, options, own))
            for page, own in chosen.items() if own]


def measured(of_trace, options, title, unit, needed, read):
    """(title, unit, {row: values by trace}); None unless every trace has it."""
    found = []
    for files in of_trace.values():
        results = next((one for one in files if one.has(*needed)), None)
        if results is None:
            return None
        found.append(read(results, results.nearest_budget(options.budget)))
    rows = {row: np.array([one[row] for one in found]) for row in found[0]
            if all(row in one for one in found)}
    rows = {row: values for row, values in rows.items() if not np.isnan(values).all()}
    return (title, unit, rows) if rows else None


def mean(values):
    return float(style.mean_over(np.ravel(values), axis=0))


def fraction(values):
    """How many of some booleans are true."""
    return float(np.mean(values)) if np.size(values) else np.nan


def estimates(variable):
    def read(results, budget):
        values = results.variable(variable, "layer", "estimator")
        return {risk.NAMES.get(str(name), str(name)): mean(values[:, k])
                for k, name in enumerate(results.data["estimator"].values)}
    return read


def concentration(results, budget):
    values = results.variable("attention_cdf_mean", "layer", "share")
    return {f"largest {100 * part:g} %": mean(values[:, k])
            for k, part in enumerate(results.data["share"].values)}


def of_policies(variable, *more):
    def read(results, budget):
        values = results.variable(variable, "policy", "budget", "layer", *more)
        return {policy: mean(values[k, budget]) for k, policy in enumerate(results.policies)
                if not style.is_full(policy)}
    return read


def over_chance(results, budget):
    share, chance = (of_policies(name)(results, budget)
                     for name in ("late_share", "late_share_chance"))
    return {policy: share[policy] / chance[policy] if chance[policy] > 0 else np.nan
            for policy in share}


def locality(results, budget):
    values = results.variable("locality", "layer", "head")
    return {"locality, mean over heads": mean(values),
            "heads above 0.05": fraction(values[~np.isnan(values)] > 0.05)}


def norms(results, budget):
    attention = results.variable("key_norm_attention_spearman", "layer", "head")
    return {"norm and attention": mean(attention),
            "heads with less than 0": fraction(attention[~np.isnan(attention)] < 0),
            "norm and position": mean(results.variable("key_norm_position", "layer", "kv_head"))}


def drifts(results, budget):
    rows = {}
    for k, name in enumerate(results.data["indicator"].values):
        dims = ("indicator", "budget", "layer", "head")
        size = np.abs(results.variable("drift", *dims)[k, budget]).ravel()
        width = results.variable("drift_width", *dims)[k, budget].ravel()
        rows.update({f"{name}: median head": style.middle(size, axis=0),
                     f"{name}: most": style.most(size, axis=0),
                     f"{name}: widest window": style.most(width, axis=0)})
    return rows


# title, unit, variables, what is read of a results file at a budget: {row: value}
MEASURES = (
    *((RISK + title, unit, (variable,), estimates(variable))
      for variable, title, unit in risk.TABLE),
    ("attention held by the largest entries", "fraction", ("attention_cdf_mean",), concentration),
    ("evicted share of a query's top 20 %", "fraction", ("late_share",),
     of_policies("late_share")),
    ("evicted share of the top 20 % over chance", "ratio; below 1: better than chance",
     ("late_share", "late_share_chance"), over_chance),
    ("evicted entries in any step's top 20 %", "fraction", ("late_recall",),
     of_policies("late_recall")),
    ("locality in time (0: white noise)", "fraction", ("locality",), locality),
    ("key norms: rank correlations", "correlation; fraction",
     ("key_norm_attention_spearman", "key_norm_position"), norms),
    ("importance, Pearson with the full cache", "correlation", ("importance_pearson",),
     of_policies("importance_pearson", "step")),
    ("importance, cosine with the full cache", "cosine", ("importance_cosine",),
     of_policies("importance_cosine", "step")),
    ("drift of the best entries, either way", "tokens", ("drift", "drift_width"), drifts),
)


def draw(first, names, options, panels):
    looks = [{"color": style.COLOURS[i % 10], "marker": style.MARKERS[i % 10], "markersize": 3,
              "linestyle": "", "fillstyle": "full" if i < 10 else "none",
              "markeredgewidth": 0.4} for i in range(len(names))]
    rows, columns = style.panel_grid(len(panels), 2)
    _, size, height = style.row_labels([row for panel in panels for row in panel[2]])
    most = max(len(panel[2]) for panel in panels)
    budget = first.budget_text(first.nearest_budget(options.budget))
    fig, axes = style.frame(
        "Estimates of the true risk over traces" if panels[0][0].startswith(RISK) else
        f"Dynamics of attention over traces, policies at budget {budget}",
        f"{first.model}, {len(names)} traces, means over {len(first.layers)} layers"
        + ("; bar and line: mean over traces, 95 % bootstrap interval" if len(names) > 1 else ""),
        rows, columns, 0.4 + max(height, 0.26) * most,
        [style.key(name, look) for name, look in zip(names, looks)])
    table = []
    for ax, (title, unit, values) in zip(axes.flat, panels):
        ax.set(title=title.removeprefix(RISK), xlabel=unit)
        ax.set_yticks(range(len(values)), [style.wrapped(row) for row in values], fontsize=size)
        summaries = draw_panel(ax, unit, list(values.values()), looks)
        table += [[title.removeprefix(RISK), row, *summary, *own]
                  for (row, own), summary in zip(values.items(), summaries)]
    style.hide_unused(axes, len(panels))
    style.numbers(fig, ["measure", "row", "mean", "low", "high", *names], table)
    return fig


def draw_panel(ax, unit, rows, looks):
    """Marks and intervals of rows of values by trace; returns [(mean, low, high)]."""
    summaries = []
    for p, own in enumerate(rows):
        for look, value in zip(looks, own):
            ax.plot(value, p, zorder=2, **look)
        mean_value, (low, high) = statistics.over_traces(own)
        text = f"{mean_value:.3f}"
        if len(own) > 1:
            ax.plot([low, high], [p + 0.24] * 2, color="black", linewidth=0.9)
            ax.plot(mean_value, p + 0.24, marker="|", color="black", markersize=6)
            text = traces.text(mean_value, low, high, "%" if unit == "tokens" else unit)
        ax.annotate(text, (0.5, p + 0.24), xycoords=("axes fraction", "data"), fontsize=5,
                    xytext=(0, -2.6), textcoords="offset points", ha="center", va="top",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3})
        summaries.append((mean_value, low, high))
    ax.set_ylim(len(rows) - 0.25, -0.4)
    ax.grid(axis="y", visible=False)
    least, most = np.nanmin(rows), np.nanmax(rows)
    if unit != "tokens" and max(-least, most) <= 1:
        ax.set_xlim(-1.02 if least < 0 else -0.02, 1.02)
    if least < 0:
        ax.axvline(0, color="black", linewidth=0.7, linestyle=":")
    return summaries
