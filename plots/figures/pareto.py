"""How often each λ of `constrain=debias` is Pareto-optimal over budgets, and the points themselves
(Pitfalls, Appendix H, Tables 3 and 4, Figures 15 to 18).

Losses are those of plots/losses.py, from one results file or two. At a budget λ is optimal if no
other λ has both losses at most as large and one smaller. Budgets at which all λ have the same point
(the full cache, for one) say nothing and are left out; hatched bars count them, too.
"""

import functools

import numpy as np

from plots import load, losses, statistics, style

TITLE = "how often each lambda of debiased eviction is Pareto-optimal, and its points"
READS = "several"
PANELS = 4   # budgets of the scatter figure
PAGE = 8


def pages(several, options):
    lost = losses.of(several)
    groups = grids(several[0], lost)
    if not groups:
        raise load.NotMeasured(f"{several[0].path}: no policy with constrain=debias at several "
                               "debias_lambda")
    bases = [list(groups)[first:first + PAGE] for first in range(0, len(groups), PAGE)]
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


def optimal(lost, grid):
    """(optimal [λ, budget], budgets at which all λ have one point [budget])."""
    points = np.stack([lost.points(record) for record in grid.values()])   # λ, budget, 2
    front = np.stack([statistics.pareto(points[:, b]) for b in range(points.shape[1])], axis=1)
    return front, (points == points[:1]).all(axis=(0, 2))


def draw(several, lost, groups, bases, note):
    rows, columns = style.panel_grid(len(bases), 4)
    fig, axes = style.frame(
        f"How often each λ is Pareto-optimal{note}", where(several, lost), rows, columns, 1.7, (),
        ("λ of constrain=debias (0: as the policy is, 1: fair)", "budgets (count)"))
    table = []
    for ax, base in zip(axes.flat, bases):
        front, same = optimal(lost, groups[base])
        lambdas = list(groups[base])
        counts, every = front[:, ~same].sum(axis=1), front.sum(axis=1)
        x = np.arange(len(lambdas))
        ax.bar(x, every, 0.62, color="white", edgecolor="0.4", hatch="////", linewidth=0.6,
               label=f"of all {front.shape[1]} budgets")
        ax.bar(x, counts, 0.62, color=style.COLOURS[0], edgecolor="black", linewidth=0.6,
               label=f"of the {int((~same).sum())} at which λ matters")
        ax.set_ylim(0, 1.45 * front.shape[1])
        ax.set_xticks(x, [f"{value:g}" for value in lambdas])
        ax.set_title(style.wrapped(base, 36), fontsize=6)
        ax.legend(loc="upper left", fontsize=5, handlelength=1.4)
        table += [[base, value, counts[i], int((~same).sum()), every[i], front.shape[1]]
                  for i, value in enumerate(lambdas)]
    style.hide_unused(axes, len(bases))
    style.numbers(fig, ["policy", "lambda", "optimal", "of", "optimal_all", "of_all"], table)
    return fig


def where(several, lost):
    names = ", ".join(results.name for results in several)
    return f"{several[0].model}; {names}\nlosses: {'; '.join(lost.labels)} " \
        "(1 − retained importance of the span, mean over layers and steps)"


def draw_points(several, lost, groups, bases, note):
    lambdas = list(dict.fromkeys(value for base in bases for value in groups[base]))
    looks = {value: {**style.line_style(i), "linestyle": ""} for i, value in enumerate(lambdas)}
    chosen = shown_budgets(lost, [groups[base] for base in bases])
    keys = [style.key(f"λ = {value:g}", look) for value, look in looks.items()]
    fig, axes = style.frame(
        f"Losses of the two spans for each λ{note}",
        f"{where(several, lost)}\nlower left is better; the line joins the Pareto-optimal λ",
        len(bases), len(chosen), 1.6, keys, lost.labels)
    for row, base in zip(axes, bases):
        front, _ = optimal(lost, groups[base])
        for ax, budget in zip(row, chosen):
            best = [lost.points(record)[budget]
                    for i, record in enumerate(groups[base].values()) if front[i, budget]]
            if best:
                ax.plot(*np.array(sorted(map(tuple, best))).T, color="0.5", linewidth=0.9)
            for value, record in groups[base].items():
                ax.plot(*lost.points(record)[budget], **{**looks[value], "markersize": 4.5})
            ax.margins(0.12)
            ax.set_title(f"compression ratio {1 - lost.budgets[budget]:.3g}", fontsize=6)
        row[0].set_ylabel(style.wrapped(base, 24), fontsize=6)
    return fig


def shown_budgets(lost, grids_):
    """Indices of up to `PANELS` budgets, spread over those at which λ matters anywhere."""
    matters = ~np.all([optimal(lost, grid)[1] for grid in grids_], axis=0)
    known = [i for i in np.argsort(-lost.budgets, kind="stable") if matters[i]] or [0]
    picked = np.unique(np.linspace(0, len(known) - 1, min(PANELS, len(known))).round().astype(int))
    return [known[i] for i in picked]
