"""How often each λ of `constrain=debias` is Pareto-optimal over budgets, and the points themselves
(Pitfalls, Appendix H, Tables 3 and 4, Figures 15 to 18).

Losses are those of plots/losses.py, from one results file or two per text. At a budget λ is optimal
if no other λ has both losses at most as large and one smaller. Budgets at which all λ have the same
point (the full cache, for one) say nothing and are left out; hatched bars count them, too. Each
text has fronts of its own; the points drawn are means over the texts.
"""

import functools

import numpy as np

from .. import load, losses, statistics, style

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


def optimal(points):
    """(optimal [λ, budget], budgets at which all λ have one point [budget]) of [λ, budget, 2]."""
    front = np.stack([statistics.pareto(points[:, b]) for b in range(points.shape[1])], axis=1)
    return front, (points == points[:1]).all(axis=(0, 2))


def of_texts(lost, grid):
    """`optimal` of every text, stacked: [text, λ, budget] and [text, budget]."""
    points = np.stack([lost.points(record) for record in grid.values()], axis=1)
    found = [optimal(each) for each in points]   # each text: λ, budget, 2
    return np.stack([front for front, _ in found]), np.stack([same for _, same in found])


def shares(front, same):
    """[λ, text]: share of the budgets at which λ matters; texts at which it never does are out."""
    of = (~same).sum(axis=1)
    if not of.any():
        return np.full((front.shape[1], 1), np.nan)
    counts = (front & ~same[:, None]).sum(axis=2)
    return (counts[of > 0] / of[of > 0, None]).T


def draw(several, lost, groups, bases, note):
    rows, columns = style.panel_grid(len(bases), 4)
    intervals = "\nbars: 95 % bootstrap intervals over texts" if len(lost.texts) > 1 else ""
    fig, axes = style.frame(
        f"How often each λ is Pareto-optimal{note}", where(several, lost) + intervals, rows,
        columns, 1.7, (),
        ("λ of constrain=debias (0: as the policy is, 1: fair)", "share of budgets"))
    table = []
    for ax, base in zip(axes.flat, bases):
        front, same = of_texts(lost, groups[base])
        lambdas = list(groups[base])
        counts, of = (front & ~same[:, None]).sum(axis=(0, 2)), int((~same).sum())
        every, of_every = front.sum(axis=(0, 2)), front[:, 0].size
        share = shares(front, same)
        mean, (low, high) = statistics.over_traces(share)
        x = np.arange(len(lambdas))
        ax.bar(x, every / of_every, 0.62, color="white", edgecolor="0.4", hatch="////",
               linewidth=0.6, label=f"of all {of_every} budgets")
        ax.bar(x, mean, 0.62, color=style.COLOURS[0], edgecolor="black", linewidth=0.6,
               label=f"of the {of} at which λ matters")
        if share.shape[1] > 1:
            ax.errorbar(x, mean, np.abs([mean - low, high - mean]), fmt="none", ecolor="black",
                        elinewidth=0.9, capsize=2)
        ax.set_ylim(0, 1.45)
        ax.set_yticks([0, 0.5, 1])
        ax.set_xticks(x, [f"{value:g}" for value in lambdas])
        ax.set_title(style.wrapped(base, 36), fontsize=6)
        ax.legend(loc="upper left", fontsize=5, handlelength=1.4)
        table += [[base, value, counts[i], of, every[i], of_every, mean[i], low[i], high[i]]
                  for i, value in enumerate(lambdas)]
    style.hide_unused(axes, len(bases))
    style.numbers(fig, ["policy", "lambda", "optimal", "of", "optimal_all", "of_all", "share",
                        "low", "high"], table)
    return fig


def where(several, lost):
    return f"{several[0].model}; {lost.described}\nlosses: {'; '.join(lost.labels)} " \
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
        points = means(lost, groups[base])
        front, _ = optimal(points)
        for ax, budget in zip(row, chosen):
            best = points[front[:, budget], budget]
            if best.size:
                ax.plot(*np.array(sorted(map(tuple, best))).T, color="0.5", linewidth=0.9)
            for value, point in zip(groups[base], points):
                ax.plot(*point[budget], **{**looks[value], "markersize": 4.5})
            ax.margins(0.12)
            ax.locator_params(nbins=4)
            ax.set_title(f"compression ratio {1 - lost.budgets[budget]:.3g}", fontsize=6)
        row[0].set_ylabel(style.wrapped(base, 24), fontsize=6)
    return fig


def means(lost, grid):
    """[λ, budget, 2]: losses, mean over texts."""
    return np.stack([lost.points(record).mean(axis=0) for record in grid.values()])


def shown_budgets(lost, grids_):
    """Indices of up to `PANELS` budgets, spread over those at which λ matters anywhere."""
    matters = ~np.all([optimal(means(lost, grid))[1] for grid in grids_], axis=0)
    known = [i for i in np.argsort(-lost.budgets, kind="stable") if matters[i]] or [0]
    picked = np.unique(np.linspace(0, len(known) - 1, min(PANELS, len(known))).round().astype(int))
    return [known[i] for i in picked]
