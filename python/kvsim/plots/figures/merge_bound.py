"""Change of a head's output by a merged pair, beside KeepKV's bounds on it (Theorem 5), by the
steps since the merge. Medians over pairs; the line is the median over layers, the band their range.
"""

import numpy as np

from .. import load, style

TITLE = "bounds of what a merged pair changes, beside what it does change, by delay"
MEASURED, BOUND = 0, 1


def pages(results, options):
    results.need("bound", "bound_median", "bound_perturbation", "bound_share_violated")
    budget = results.nearest_budget(options.budget)
    found = cases(results, budget)
    if not found:
        raise load.NotMeasured(f"{results.path}: no merged pair that a bound is about")
    return [("merge_bound", lambda: draw(results, budget, found))]


def table(results, name, budget):
    return results.variable(name, "policy", "budget", "layer", "bound", "delay").sel(budget=budget)


def cases(results, budget):
    """[{policy, bound}] with any pairs."""
    pairs = table(results, "bound_pairs", budget).sum(["layer", "delay"])
    return [{"policy": policy, "bound": bound} for policy in pairs.policy.values
            for bound in pairs.bound.values if pairs.sel(policy=policy, bound=bound) > 0][:8]


def draw(results, budget, found):
    delays = results.data["delay"].values.astype(float)
    median = table(results, "bound_median", budget)
    theta = table(results, "bound_perturbation", budget)
    violated = table(results, "bound_share_violated", budget)
    applicable = table(results, "bound_share_applicable", budget)
    rows, columns = style.panel_grid(len(found), 4)
    fig, axes = style.frame(
        f"What merged pairs change at budget {results.budget_text(budget)}, and its bounds",
        f"{results.subtitle}\nmedians over pairs; line: median over layers; band: range over "
        "layers; below each delay: share of pairs the bound applies to, and of those beyond it",
        rows, columns, 2.2,
        [style.key("measured change of the output", style.line_style(MEASURED)),
         style.key("bound, where it applies", style.line_style(BOUND))],
        ("steps since the merge", "norm, before W_O (model units)"), sharey=True)
    at = np.arange(delays.size)
    for ax, case in zip(axes.flat, found):
        for values, look in ((theta, MEASURED), (median, BOUND)):
            band(ax, at, values.sel(case), style.line_style(look))
        ax.set_yscale("log")
        style.log_ticks(ax.yaxis)
        labels = ["\n".join((f"{delay:g}", *(share(values.sel({**case, "delay": delay}))
                                             for values in (applicable, violated))))
                  for delay in delays]
        ax.set_xticks(at, labels)
        ax.set_title(f"{style.wrapped(case['policy'], 28)}\nbound: {case['bound']}")
    style.hide_unused(axes, len(found))
    return fig


def band(ax, at, values, look):
    values = values.assign_coords(delay=at).dropna("delay", how="all")
    if values.size == 0:
        return
    low, middle, high = values.quantile([0, 0.5, 1], "layer").clip(min=1e-9)
    ax.fill_between(values.delay, low, high, color=look["color"], alpha=0.15, linewidth=0)
    ax.plot(values.delay, middle, **look)


def share(values):
    return f"{100 * values.mean():.0f} %" if values.notnull().any() else "-"
