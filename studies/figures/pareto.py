"""How often each λ of `constrain=debias` is Pareto-optimal over budgets, and the points themselves
(Pitfalls, Appendix H, Tables 3 and 4, Figures 15 to 18).

Losses are those of losses.py, from one results file or two per text. At a budget λ is optimal
if no other λ has both losses at most as large and one smaller. Budgets at which all λ have the same
point (the full cache, for one) say nothing and are left out; hatched bars count them, too. Each
text has fronts of its own; the points drawn are means over the texts. Shares have plain means,
errors and divergences geometric ones.

Below stand the stream error of each λ and, where the closed loop of a trace was given, the
divergence of the model's predictions. Crosses mark what wrecks the cache: an optimal λ may.
"""

import functools

import numpy as np
import xarray

from .. import load, statistics, style
from . import losses

TITLE = "how often each lambda of debiased eviction is Pareto-optimal, and its points"
READS = "several"
PANELS = 4   # budgets of the scatter figure
PAGE = 4


def pages(several, options):
    lost = losses.of(several)
    grids, known = {}, load.parameters(several[0])
    for base, records in losses.variants(several[0], lost).items():
        lambdas = {float(known[one]["debias_lambda"]): one for one in records
                   if known[one].get("constrain") == "debias"}
        if len(lambdas) > 1:
            grids[base] = dict(sorted(lambdas.items()))
    if not grids:
        raise load.NotMeasured(f"{several[0].path}: no policy with constrain=debias at several "
                               "debias_lambda")
    where = f"{several[0].model}; {lost.described}\nlosses: {'; '.join(lost.labels)} " \
        "(1 − retained importance of the span, mean over layers and steps)"
    return {name: page for stem, drawing in (("pareto", draw), ("pareto-points", draw_points))
            for name, page in style.pages(stem, style.groups(list(grids), PAGE), functools.partial(
                drawing, where, lost, grids)).items()}


def points_of(lost, grid):
    """[λ, loss, text, budget]: the losses of a grid of λ."""
    points = lost.values.sel(policy=list(grid.values())).rename(policy="lambda")
    return points.assign_coords({"lambda": list(grid)})


def optimal(points):
    """(which λ are Pareto-optimal, whether all λ have one point) of [λ, loss, ...]."""
    front = xarray.apply_ufunc(losses.front, points, input_core_dims=[["lambda", "loss"]],
                               output_core_dims=[["lambda"]], vectorize=True)
    return front, (points == points.isel({"lambda": 0})).all(["lambda", "loss"])


def wrecks(lost, base, grid):
    """[λ, text, budget]: where λ wrecks the cache; told from the policy itself, or from λ = 0."""
    found = load.stacked([lost.wrecked(record, base) for record in grid.values()], "lambda")
    return found.assign_coords({"lambda": list(grid)})


def looks_of(grids, bases):
    """{λ: look} of all bases."""
    lambdas = dict.fromkeys(value for base in bases for value in grids[base])
    return {value: style.line_style(i) for i, value in enumerate(lambdas)}


def draw(where, lost, grids, bases, note):
    intervals = "\nbars: 95 % intervals over texts (t)" if len(lost.texts) > 1 else ""
    looks = looks_of(grids, bases)
    keys = {f"λ = {value:g}": look for value, look in looks.items()} | \
        ({"random": losses.RANDOM} if lost.random else {})
    fig, axes = style.frame(
        f"How often each λ is Pareto-optimal, and what it costs{note}",
        f"{where}{intervals}\n{lost.wreck_rule}; over the bars: share of budgets",
        1 + len(lost.damage), len(bases), 1.6,
        [style.key(*one) for one in keys.items()] if lost.damage else (), ("", ""), sharey="row")
    table = []
    for column, base in zip(axes.T, bases):
        table += draw_shares(column[0], lost, base, grids[base])
        losses.draw_damage(column[1:], lost, base, {},
                           {record: looks[value] for value, record in grids[base].items()})
        for ax in column[1:]:   # a closed loop may have few budgets
            ax.set(xlabel=style.BUDGET, xlim=(lost.budgets.min() - 0.04, lost.budgets.max() + 0.04))
    losses.name_rows(axes, lost, "share of budgets")
    style.numbers(fig, ["policy", "lambda", "optimal", "of", "optimal_all", "of_all", "share",
                        "low", "high", "wrecked", "optimal_unwrecked",
                        *(f"{measure}, geometric mean over measured budgets below 1"
                          for measure in lost.damage)], table)
    return fig


def draw_shares(ax, lost, base, grid):
    """Bars of how often each λ is optimal, of all budgets and of those at which λ matters, and their rows
    of the table."""
    front, same = optimal(points_of(lost, grid))
    wrecked, counted = wrecks(lost, base, grid), front & ~same
    every, bad, matters, unwrecked = (one.sum(["text", "budget"]).values for one in (
        front, wrecked, counted, counted & ~wrecked))
    of, of_every = int((~same).sum()), same.size
    # Texts at which λ never matters are out.
    of_text = (~same).sum("budget")
    share = (counted.sum("budget") / of_text.where(of_text > 0)).transpose("lambda", "text")
    share = share.dropna("text") if of else share.isel(text=[0])
    mean, (low, high) = statistics.over_traces(share, "share")
    x = np.arange(len(grid))
    ax.bar(x, every / of_every, 0.62, color="white", edgecolor="0.4", hatch="////",
           linewidth=0.6, label=f"of all {of_every} budgets")
    ax.bar(x, mean, 0.62, color=style.COLOURS[0], edgecolor="black", linewidth=0.6,
           label=f"of the {of} at which λ matters")
    if share.shape[1] > 1:
        ax.errorbar(x, mean, np.abs([mean - low, high - mean]), fmt="none", ecolor="black",
                    elinewidth=0.9, capsize=2)
    for i in np.flatnonzero(bad):
        ax.annotate(f"× {bad[i] / of_every:.2f}", (i, max(every[i] / of_every, high[i])),
                    xytext=(0, 2), textcoords="offset points", ha="center", fontsize=5.5)
    ax.set(ylim=(0, 1.55), yticks=[0, 0.5, 1], xlabel="λ (0: the policy itself, 1: fair)")
    ax.set_xticks(x, [f"{value:g}" for value in grid])
    ax.set_title(style.wrapped(base, 36), fontsize=6)
    ax.legend(loc="upper left", fontsize=5, handlelength=1.4)
    return [[base, value, matters[i], of, every[i], of_every, mean[i], low[i], high[i], bad[i], unwrecked[i],
             *(float(losses.geometric(losses.over_texts(one, record)[lost.budgets < 1], "budget"))
               for one in lost.damage.values())]
            for i, (value, record) in enumerate(grid.items())]


def draw_points(where, lost, grids, bases, note):
    looks = {value: {**look, "linestyle": "", "markersize": 4.5}
             for value, look in looks_of(grids, bases).items()}
    means = {base: points_of(lost, grids[base]).mean("text", skipna=False) for base in bases}
    fronts = {base: optimal(points) for base, points in means.items()}
    # Spread over the budgets at which λ matters anywhere.
    same = np.all([same for _, same in fronts.values()], axis=0)
    chosen = style.spread(lost.budgets[~same].tolist() or lost.budgets.tolist()[:1], PANELS)
    fig, axes = style.frame(
        f"Losses of the two spans for each λ{note}",
        f"{where}\nlower left is better; the line joins the Pareto-optimal λ\n{lost.wreck_rule}",
        len(bases), len(chosen), 1.6,
        [style.key(f"λ = {value:g}", look) for value, look in looks.items()], lost.labels)
    for row, base in zip(axes, bases):
        bad = wrecks(lost, base, grids[base]).mean("text") >= 0.5
        for ax, budget in zip(row, chosen):
            own = means[base].sel(budget=budget).transpose("lambda", "loss")
            best = own[fronts[base][0].sel(budget=budget).values].values
            if best.size:
                ax.plot(*np.array(sorted(map(tuple, best))).T, color="0.5", linewidth=0.9)
            for value in grids[base]:
                at = {"lambda": value}
                ax.plot(*own.sel(at).values, **looks[value])
                if bad.sel({**at, "budget": budget}):
                    ax.plot(*own.sel(at).values, **losses.CROSS)
            ax.margins(0.12)
            ax.locator_params(nbins=4)
            ax.set_title(f"budget {budget:.3g}", fontsize=6)
        row[0].set_ylabel(style.wrapped(base, 24), fontsize=6)
    return fig
