"""Estimates of risk, and the dynamics of attention, over several traces: what the figures risk,
attention_cdf, late_importance, locality, drift, key_norm and importance_correlation show of one.

`risk_traces` has a row per estimate, `attention_traces` a panel per measure; small marks are
traces, the bar is their mean, the line its 95 % interval over traces. Needs `kvsim replay
--metric` of any of these; a trace may have its measures in more than one results file.
"""

import functools

import numpy as np

from ...plain import counted
from .. import load, statistics, style
from . import risk, traces

TITLE = "estimates of risk and dynamics of attention over several traces, with intervals"
READS = "several"
POOLS = True
RISK = "risk: "   # begins the titles of the first figure


def pages(several, options):
    of_trace = {}
    for results in several:
        of_trace.setdefault(results.data.attrs.get("trace_digest", results.trace), []).append(results)
    panels = [one for one in (measured(of_trace, options, *how) for how in MEASURES) if one]
    chosen = {"risk_traces": [one for one in panels if one[0].startswith(RISK)],
              "attention_traces": [one for one in panels if not one[0].startswith(RISK)]}
    if not panels:
        raise load.NotMeasured("no measure of risk or of attention in a file of every trace; kvsim "
                               "replay --metric risk,attention_cdf,late_importance,locality,"
                               "drift,key_norm measures them")
    names = load.names([files[0] for files in of_trace.values()])
    return {page: functools.partial(draw, several[0], names, options, own)
            for page, own in chosen.items() if own}


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


def fraction(values, holds):
    """How many of the defined values have a property; NaN of none."""
    return float(holds(values).where(values.notnull()).mean())


def by_label(values):
    """(label, value) of an array with one dimension."""
    return zip(values[values.dims[0]].values.tolist(), values.values.tolist())


def estimates(variable):
    def read(results, budget):
        values = results.variable(variable, "layer", "estimator")
        return {risk.NAMES.get(name, name): value
                for name, value in by_label(values.mean("layer"))}
    return read


def concentration(results, budget):
    values = results.variable("attention_cdf_mean", "layer", "share")
    return {f"largest {100 * part:g} %": value for part, value in by_label(values.mean("layer"))}


def of_policies(variable, *more):
    def read(results, budget):
        values = results.variable(variable, "policy", "budget", "layer", *more).sel(budget=budget)
        return {policy: value for policy, value in by_label(values.mean(["layer", *more]))
                if not load.is_full(policy)}
    return read


def over_chance(results, budget):
    share, chance = (of_policies(name)(results, budget)
                     for name in ("late_share", "late_share_chance"))
    return {policy: share[policy] / chance[policy] if chance[policy] > 0 else np.nan
            for policy in share}


def locality(results, budget):
    values = results.variable("locality", "layer", "head")
    return {"locality, mean over heads": float(values.mean()),
            "heads above 0.05": fraction(values, lambda one: one > 0.05)}


def norms(results, budget):
    attention = results.variable("key_norm_attention_spearman", "layer", "head")
    position = results.variable("key_norm_position", "layer", "kv_head")
    return {"norm and attention": float(attention.mean()),
            "heads with less than 0": fraction(attention, lambda one: one < 0),
            "norm and position": float(position.mean())}


def drifts(results, budget):
    drift, width = (results.variable(name, "indicator", "budget", "layer", "head")
                    .sel(budget=budget) for name in ("drift", "drift_width"))
    size, of_heads, rows = abs(drift), ["layer", "head"], {}
    for (name, median), (_, most), (_, widest) in zip(
            *map(by_label, (size.median(of_heads), size.max(of_heads), width.max(of_heads)))):
        rows.update({f"{name}: median head": median, f"{name}: most": most,
                     f"{name}: widest window": widest})
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
    ("locality in time (0: white noise)", "of variance", ("locality",), locality),
    ("key norms: rank correlations", "correlation; fraction",
     ("key_norm_attention_spearman", "key_norm_position"), norms),
    ("importance, Pearson with the full cache", "correlation", ("importance_pearson",),
     of_policies("importance_pearson", "step")),
    ("importance, cosine with the full cache", "cosine", ("importance_cosine",),
     of_policies("importance_cosine", "step")),
    ("drift of the best entries, either way", "tokens", ("drift", "drift_width"), drifts),
)


def draw(first, names, options, panels):
    looks = [style.mark_style(i) for i in range(len(names))]
    _, size, height = style.row_labels([row for panel in panels for row in panel[2]])
    most = max(len(panel[2]) for panel in panels)
    budget = first.budget_text(first.nearest_budget(options.budget))
    fig, axes = style.panels(
        "Estimates of the true risk over traces" if panels[0][0].startswith(RISK) else
        f"Dynamics of attention over traces, policies at budget {budget}",
        f"{first.model}, {len(names)} trace{'s' if len(names) > 1 else ''}, "
        f"means over {counted(len(first.layers), 'layer')}"
        + ("; bar and line: mean over traces, 95 % interval (t)" if len(names) > 1 else ""),
        len(panels), 2, 0.4 + max(height, 0.26) * most,
        [style.key(name, look) for name, look in zip(names, looks)])
    table = []
    for ax, (title, unit, values) in zip(axes, panels):
        ax.set(title=title.removeprefix(RISK), xlabel=unit)
        ax.set_yticks(range(len(values)), [style.wrapped(row) for row in values], fontsize=size)
        summaries = draw_panel(ax, unit, list(values.values()), looks)
        table += [[title.removeprefix(RISK), row, *summary, *own]
                  for (row, own), summary in zip(values.items(), summaries)]
    style.numbers(fig, ["measure", "row", "mean", "low", "high", *names], table)
    return fig


def draw_panel(ax, unit, rows, looks):
    """Marks and intervals of rows of values by trace; returns [(mean, low, high)]."""
    summaries = []
    for p, own in enumerate(rows):
        for look, value in zip(looks, own):
            ax.plot(value, p, zorder=2, **look)
        mean, (low, high) = statistics.over_traces(own, "share" if unit == "fraction" else "plain")
        traces.mean_row(ax, p, mean, low, high, f"{mean:.3f}" if len(own) == 1 else
                        traces.text(mean, low, high, "%" if unit == "tokens" else unit))
        summaries.append((mean, low, high))
    ax.set_ylim(len(rows) - 0.25, -0.4)
    least, most = np.nanmin(rows), np.nanmax(rows)
    if unit != "tokens" and max(-least, most) <= 1:
        ax.set_xlim(-1.02 if least < 0 else -0.02, 1.02)
    if least < 0:
        ax.axvline(0, **style.DOTTED)
    return summaries
