"""How much depends on the query that chose: retained importance when one query of the window
chooses alone, beside mean aggregation, the maximum, DefensiveKV's step and published code, and
hindsight, which is oracle-mean (DefensiveKV, Figures 1, 3, 12 and 13).

Needs the results of `kvsim replay --fragility`: records that differ in `aggregate=single` and
`single_row` only are the band. The defensive step is the largest attention over rows and heads,
floored by a prior, and then times the norm of v W (Algorithm 1). One panel per layer.
"""

import functools
import re

from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from .. import load, style

TITLE = "retained importance of single queries as a band, beside mean, defensive and hindsight"
MAX = {"aggregate": "max", "group": "max"}
DEFENSIVE = {**MAX, "indicator": "attention", "prior": "head-mean", "weight": "projected-l1"}
CHOSEN_ROW = 15   # the historical token of the paper's figure
LOOKS = {"record as it is": 1, "max over rows and heads": 4, "defensive step": 2,
         "defensivekv:code": 5, "hindsight": 3}


def pages(results, options):
    found = groups(results)
    if not found:
        raise load.NotMeasured(f"{results.path}: no record with aggregate=single for every row; "
                               "kvsim replay --fragility makes them")
    numbered = len(found) > 1
    return [(f"fragility{f'-{i}' if numbered else ''}{suffix}",
             functools.partial(draw, results, options, base, members))
            for i, (base, members) in enumerate(found.items(), start=1)
            for suffix, draw in (("", bands), ("-rows", by_row))]


def groups(results):
    """{base record: {"singles": [records by row], "max" and "defensive": record or None}}."""
    known = load.parameters(results)
    found = {}
    for record in results.policies:
        singles = re.compile(r"(^|,)aggregate=single(,|$)")
        if singles.search(record) or record not in known:
            continue
        own = rest(known[record])
        rows = [other for other in results.policies if singles.search(other) and
                other in known and rest(known[other]) == own]
        if len(rows) < 2 or known[record].get("aggregate") == "max":
            continue
        rows.sort(key=lambda other: int(known[other]["single_row"]))
        found[record] = {"singles": rows, "max": changed(results, known, record, MAX),
                         "defensive": changed(results, known, record, DEFENSIVE)}
    return found


def rest(keys, without=("aggregate", "single_row")):
    return {key: value for key, value in keys.items()
            if key not in without and not key.startswith(("prior_", "ema_"))}


def changed(results, known, base, wanted):
    """The record that is `base` with these keys, or None."""
    without = ("aggregate", "single_row", *wanted)
    for record in results.policies:
        keys = known.get(record, {})
        if all(keys.get(key) == value for key, value in wanted.items()) and \
                rest(keys, without) == rest(known[base], without):
            return record
    return None


def published(results, base):
    """The record of DefensiveKV's published code with the window of `base`, or None."""
    known = load.parameters(results)
    return next((one for one in results.policies if one.split(",")[0] == "defensivekv:code"
                 and known.get(one, {}).get("window") == known[base]["window"]), None)


def curves(results, base, members):
    """Name and record of the curves that stand beside the band."""
    named = {"record as it is": base, "max over rows and heads": members["max"],
             "defensive step": members["defensive"], "defensivekv:code": published(results, base),
             "hindsight": "oracle-mean" if "oracle-mean" in results.policies else None}
    return {name: record for name, record in named.items() if record is not None}


def title(base, results, budget):
    return f"Fragility of {base} at budget {results.budget_text(budget)}"


def bands(results, options, base, members):
    budget = results.nearest_budget(options.budget)
    values = results.variable("retained_importance", "policy", "budget", "layer", "step")
    values = values.sel(budget=budget)
    singles = values.sel(policy=members["singles"])
    shown = curves(results, base, members)
    row = min(CHOSEN_ROW, singles.policy.size - 1)
    keys = [Patch(color="0.82", label=f"one of {singles.policy.size} queries alone: least to most"),
            style.key(f"query {row} of the window alone", {**style.line_style(0), "marker": ""})]
    keys += [style.key(name, {**style.line_style(LOOKS[name]), "marker": ""}) for name in shown]
    rows, columns = style.panel_grid(len(results.layers), 5)
    fig, axes = style.frame(
        title(base, results, budget),
        f"{results.subtitle}\neach panel: number of steps below 0.5 (dotted) of the query alone / "
        + " / ".join(shown), rows, columns, max(1.1, min(1.7, 7.5 / rows)), keys,
        ("step (position of the query, tokens)", "retained importance (fraction)"),
        sharex=True, sharey=True)
    for layer, ax in zip(results.layers, axes.flat):
        band = singles.sel(layer=layer)
        lines = values.sel(layer=layer, policy=[members["singles"][row], *shown.values()])
        ax.fill_between(results.steps, band.min("policy"), band.max("policy"), color="0.82",
                        linewidth=0)
        for line, index in zip(lines, [0] + [LOOKS[name] for name in shown]):
            ax.plot(results.steps, line, linewidth=0.7, **{**style.line_style(index), "marker": ""})
        ax.axhline(0.5, color="black", linewidth=0.7, linestyle=":")
        counts = " / ".join(str(int((line < 0.5).sum())) for line in lines)
        ax.set_title(f"layer {layer}: {counts}", fontsize=6)
        ax.set_ylim(-0.02, 1.02)
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    style.hide_unused(axes, len(results.layers))
    return fig


def by_row(results, options, base, members):
    """Mean and worst retained importance and outliers against the row that chose (Figure 13)."""
    budget = results.nearest_budget(options.budget)
    shown = curves(results, base, members)
    keys = [style.key("one query alone", style.line_style(0))]
    keys += [style.key(name, {**style.line_style(LOOKS[name]), "marker": ""}) for name in shown]
    fig, axes = style.frame(title(base, results, budget), results.subtitle, 1, 3, 2.2, keys,
                            ("row of the window (0 is the oldest)", ""))
    panels = (("retained_importance_mean", "mean", "mean retained importance, layers' mean"),
              ("retained_importance_min", "min", "worst retained importance of all layers"),
              ("outlier_count", "sum", "(layer, step) pairs below the outlier line"))
    for ax, (name, over_layers, label) in zip(axes[0], panels):
        values = results.variable(name, "policy", "budget", "layer").sel(budget=budget)
        values = getattr(values, over_layers)("layer")
        ax.plot(values.sel(policy=members["singles"]), **style.line_style(0))
        for text, record in shown.items():
            ax.axhline(values.sel(policy=record), **{**style.line_style(LOOKS[text]), "marker": ""})
        ax.set_title(label)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes[0, 0].set_ylabel("fraction")
    axes[0, 1].set_ylabel("fraction")
    axes[0, 2].set_ylabel("count")
    return fig
