"""How much depends on the query that chose: retained importance when one query of the window
chooses alone, beside mean aggregation, the maximum, DefensiveKV's step and published code, and
hindsight, which is oracle-mean (DefensiveKV, Figures 1, 3, 12 and 13).

Needs the results of `kvsim replay --fragility`: records that differ in `aggregate=single` and
`single_row` only are the band. The defensive step is the largest attention over rows and heads,
floored by a prior, and then times the norm of v W (Algorithm 1). One panel per layer."""

import functools

from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from .. import load, style

TITLE = "retained importance of single queries as a band, beside mean, defensive and hindsight"
LACKING = "no record with aggregate=single for every row; kvsim replay --fragility makes them"
MAX = {"aggregate": "max", "group": "max"}
DEFENSIVE = {**MAX, "indicator": "attention", "prior": "head-mean", "weight": "projected-l1"}
CHOSEN_ROW = 15   # the historical token of the paper's figure
# Of line_style().
LOOKS = {"record as it is": 1, "max over rows and heads": 4, "defensive step": 2, "defensivekv:code": 5, "hindsight": 3}
PANELS = (("retained_importance_mean", "mean", "mean retained importance, layers' mean", "fraction"),
          ("retained_importance_min", "min", "worst retained importance of all layers", "fraction"),
          ("outlier_count", "sum", "(layer, step) pairs below the outlier line", "count"))


def find(results, options):
    """[(records that chose by one row, in order, {name of a curve beside their band: record})]."""
    found = []
    for group in load.alike(results, lambda key: key in (*DEFENSIVE, "single_row")
                            or key.startswith(("prior_", "ema_"))):
        for base, keys in group.items():
            def changed(wanted):
                """The records that are `base` with these keys."""
                return [one for one, own in group.items()
                        if {key: own.get(key) for key in DEFENSIVE} ==
                        {key: keys.get(key) for key in DEFENSIVE} | wanted]
            singles = sorted(changed({"aggregate": "single"}), key=lambda one: int(group[one]["single_row"]))
            if keys.get("aggregate") in ("single", "max") or len(singles) < 2:
                continue
            published = [one for one, own in load.parameters(results).items()
                         if one.split(",")[0] == "defensivekv:code" and own.get("window") == keys["window"]]
            beside = ([base], changed(MAX), changed(DEFENSIVE), published,
                      [one for one in results.policies if one == "oracle-mean"])
            found.append((singles, {name: own[0] for name, own in zip(LOOKS, beside) if own}))
    return found


def pages(results, options, found):
    budget = results.nearest_budget(options.budget)
    return {f"fragility{f'-{i}' if len(found) > 1 else ''}{suffix}":
            functools.partial(draw, results, budget, *one)
            for i, one in enumerate(found, start=1) for suffix, draw in (("", bands), ("-rows", by_row))}


def title(results, budget, curves):
    return f"Fragility of {curves['record as it is']} at budget {results.budget_text(budget)}"


def plain(number):
    return {**style.line_style(number), "marker": ""}


def bands(results, budget, singles, curves):
    values = results.variable("retained_importance", "policy", "budget", "layer", "step")
    values = values.sel(budget=budget)
    row = min(CHOSEN_ROW, len(singles) - 1)
    lines = {f"query {row} of the window alone": (singles[row], plain(0))} | {
        name: (record, plain(LOOKS[name])) for name, record in curves.items()}
    rows, columns = style.panel_grid(len(results.layers), 5)
    fig, axes = style.frame(
        title(results, budget, curves),
        f"{results.subtitle}\neach panel: number of steps below 0.5 (dotted) of the query alone / "
        + " / ".join(curves), rows, columns, max(1.1, min(1.7, 7.5 / rows)),
        [Patch(color="0.82", label=f"one of {len(singles)} queries alone: least to most"),
         *(style.key(name, look) for name, (_, look) in lines.items())],
        ("step (position of the query, tokens)", "retained importance (fraction)"), sharex=True, sharey=True)
    for layer, ax in zip(results.layers, axes.flat):
        own = values.sel(layer=layer)
        band, counts = own.sel(policy=singles), []
        ax.fill_between(results.steps, band.min("policy"), band.max("policy"), color="0.82", linewidth=0)
        for record, look in lines.values():
            ax.plot(results.steps, own.sel(policy=record), **{**look, "linewidth": 0.7})
            counts.append(int((own.sel(policy=record) < 0.5).sum()))
        ax.axhline(0.5, **style.DOTTED)
        ax.set_title(f"layer {layer}: {' / '.join(map(str, counts))}", fontsize=6)
        ax.set_ylim(-0.02, 1.02)
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    style.hide_unused(axes, len(results.layers))
    return fig


def by_row(results, budget, singles, curves):
    """Mean and worst retained importance and outliers against the row that chose (Figure 13)."""
    fig, axes = style.frame(
        title(results, budget, curves), results.subtitle, 1, 3, 2.2,
        [style.key("one query alone", style.line_style(0)),
         *(style.key(name, plain(LOOKS[name])) for name in curves)],
        ("row of the window (0 is the oldest)", ""))
    for ax, (name, over_layers, label, unit) in zip(axes[0], PANELS):
        values = results.variable(name, "policy", "budget", "layer").sel(budget=budget)
        values = getattr(values, over_layers)("layer")
        ax.plot(values.sel(policy=singles), **style.line_style(0))
        for text, record in curves.items():
            ax.axhline(values.sel(policy=record), **plain(LOOKS[text]))
        ax.set(title=label, ylabel=unit)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return fig
