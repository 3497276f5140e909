"""How often each λ of `constrain=debias` is Pareto-optimal over budgets, and the points themselves
(Pitfalls, Appendix H, Tables 3 and 4, Figures 15 to 18).

Losses are those of plots/losses.py, from one results file or two per text. At a budget λ is optimal
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

from .. import load, losses, statistics, style

TITLE = "how often each lambda of debiased eviction is Pareto-optimal, and its points"
READS = "several"
PANELS = 4   # budgets of the scatter figure
PAGE = 4


def pages(several, options):
    lost = losses.of(several)
    groups = grids(several[0], lost)
    if not groups:
        raise load.NotMeasured(f"{several[0].path}: no policy with constrain=debias at several "
                               "debias_lambda")
    bases = style.groups(list(groups), PAGE)
    return style.pages("pareto", bases, functools.partial(draw, several, lost, groups)) + \
        style.pages("pareto-points", bases, functools.partial(draw_points, several, lost, groups))


def grids(results, lost):
    """{base record: {λ: record}}, for bases with at least two λ."""
    found = {}
    for base, records in losses.variants(results).items():
        lambdas = {value: record for record in records if record in lost.policies
                   and (value := losses.debias_lambda(results, record)) is not None}
        if len(lambdas) > 1:
            found[base] = dict(sorted(lambdas.items()))
    return found


def points_of(lost, grid):
    """[λ, loss, text, budget]: the losses of a grid of λ."""
    points = lost.values.sel(policy=list(grid.values())).rename(policy="lambda")
    return points.assign_coords({"lambda": list(grid)})


def optimal(points):
    """(which λ are Pareto-optimal, whether all λ have one point) of [λ, loss, ...]."""
    front = xarray.apply_ufunc(statistics.pareto, points, input_core_dims=[["lambda", "loss"]],
                               output_core_dims=[["lambda"]], vectorize=True)
    return front, (points == points.isel({"lambda": 0})).all(["lambda", "loss"])


def shares(front, same):
    """[λ, text]: share of the budgets at which λ matters; texts at which it never does are out."""
    of = (~same).sum("budget")
    share = ((front & ~same).sum("budget") / of.where(of > 0)).transpose("lambda", "text")
    return share.dropna("text") if of.any() else share.isel(text=[0])


def draw(several, lost, groups, bases, note):
    intervals = "\nbars: 95 % intervals over texts (t)" if len(lost.texts) > 1 else ""
    rows = 1 + len(lost.damage)
    lambdas = all_lambdas(groups, bases)
    looks = {value: style.line_style(i) for i, value in enumerate(lambdas)}
    keys = [style.key(f"λ = {value:g}", look) for value, look in looks.items()] + \
        ([style.key("random", losses.RANDOM)] if lost.random else [])
    fig, axes = style.frame(
        f"How often each λ is Pareto-optimal, and what it costs{note}",
        f"{where(several, lost)}{intervals}\n{lost.wreck_rule}; over the bars: share of budgets",
        rows, len(bases), 1.6, keys if lost.damage else (), ("", ""), sharey="row")
    table = []
    for column, base in zip(axes.T, bases):
        table += draw_shares(column[0], lost, base, groups[base])
        for ax, measure in zip(column[1:], lost.damage):
            losses.draw_damage(ax, lost, measure, base,
                               {lost.random: losses.RANDOM} if lost.random else {},
                               {record: looks[value] for value, record in groups[base].items()})
            ax.set_xlabel(style.BUDGET)
            # A closed loop may have few budgets.
            ax.set_xlim(lost.budgets.min() - 0.04, lost.budgets.max() + 0.04)
    for ax, label in zip(axes[:, 0], ["share of budgets", *lost.damage]):
        ax.set_ylabel(label.replace(" (", "\n("))
    style.numbers(fig, ["policy", "lambda", "optimal", "of", "optimal_all", "of_all", "share",
                        "low", "high", "wrecked", "optimal_unwrecked",
                        *(f"{measure}, geometric mean over measured budgets below 1"
                          for measure in lost.damage)], table)
    return fig


def all_lambdas(groups, bases):
    return list(dict.fromkeys(value for base in bases for value in groups[base]))


def wrecks(lost, base, grid):
    """[λ, text, budget]: where λ wrecks the cache; told from the policy itself, or from λ = 0."""
    found = load.stacked([lost.wrecked(record, base) for record in grid.values()], "lambda")
    return found.assign_coords({"lambda": list(grid)})


def draw_shares(ax, lost, base, grid):
    """Bars of how often each λ is optimal, and their rows of the table."""
    front, same = optimal(points_of(lost, grid))
    wrecked = wrecks(lost, base, grid)

    def count(cells):
        return cells.sum(["text", "budget"]).values
    counted, of, of_every = front & ~same, int((~same).sum()), same.size
    every, bad, share = count(front), count(wrecked), shares(front, same)
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
    ax.set_ylim(0, 1.55)
    ax.set_yticks([0, 0.5, 1])
    ax.set_xticks(x, [f"{value:g}" for value in grid])
    ax.set_xlabel("λ (0: the policy itself, 1: fair)")
    ax.set_title(style.wrapped(base, 36), fontsize=6)
    ax.legend(loc="upper left", fontsize=5, handlelength=1.4)
    below = lost.budgets < 1
    damage = [float(losses.geometric(losses.over_texts(one, record)[below], "budget"))
              for record in grid.values() for one in lost.damage.values()]
    damage = np.reshape(damage, (len(grid), -1))
    return [[base, *row, *own] for *row, own in zip(
        grid, count(counted), [of] * x.size, every, [of_every] * x.size, mean, low, high, bad,
        count(counted & ~wrecked), damage)]


def where(several, lost):
    return f"{several[0].model}; {lost.described}\nlosses: {'; '.join(lost.labels)} " \
        "(1 − retained importance of the span, mean over layers and steps)"


def draw_points(several, lost, groups, bases, note):
    looks = {value: {**style.line_style(i), "linestyle": ""}
             for i, value in enumerate(all_lambdas(groups, bases))}
    chosen = shown_budgets(lost, [groups[base] for base in bases])
    keys = [style.key(f"λ = {value:g}", look) for value, look in looks.items()]
    fig, axes = style.frame(
        f"Losses of the two spans for each λ{note}",
        f"{where(several, lost)}\nlower left is better; the line joins the Pareto-optimal λ\n"
        + lost.wreck_rule,
        len(bases), len(chosen), 1.6, keys, lost.labels)
    for row, base in zip(axes, bases):
        points = points_of(lost, groups[base]).mean("text", skipna=False)
        front, _ = optimal(points)
        bad = wrecks(lost, base, groups[base]).mean("text") >= 0.5
        for ax, budget in zip(row, chosen):
            own = points.sel(budget=budget).transpose("lambda", "loss")
            best = own[front.sel(budget=budget).values].values
            if best.size:
                ax.plot(*np.array(sorted(map(tuple, best))).T, color="0.5", linewidth=0.9)
            for value in groups[base]:
                at = {"lambda": value}
                ax.plot(*own.sel(at).values, **{**looks[value], "markersize": 4.5})
                if bad.sel({**at, "budget": budget}):
                    ax.plot(*own.sel(at).values, **losses.CROSS)
            ax.margins(0.12)
            ax.locator_params(nbins=4)
            ax.set_title(f"budget {budget:.3g}", fontsize=6)
        row[0].set_ylabel(style.wrapped(base, 24), fontsize=6)
    return fig


def shown_budgets(lost, grids_):
    """Up to `PANELS` budgets, spread over those at which λ matters anywhere."""
    same = np.all([optimal(points_of(lost, grid).mean("text", skipna=False))[1]
                   for grid in grids_], axis=0)
    known = lost.budgets[~same].tolist() or lost.budgets.tolist()[:1]
    picked = np.unique(np.linspace(0, len(known) - 1, min(PANELS, len(known))).round().astype(int))
    return [known[i] for i in picked]
