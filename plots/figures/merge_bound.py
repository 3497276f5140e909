"""What a merged pair changes of a head's output, beside KeepKV's bounds on it (Theorem 5), by the
steps since the merge. Medians over pairs; the line is the median over layers, the band their range.
"""

import numpy as np

from .. import load, style

TITLE = "bounds of what a merged pair changes, beside what it does change, by delay"
MEASURED, BOUND = 0, 1


def pages(results, options):
    if not results.has("bound_median", "bound_perturbation", "bound_share_violated"):
        raise load.NotMeasured(f"{results.path}: no bound_median; "
                               "kvsim replay --metric bound makes it")
    budget = results.nearest_budget(options.budget)
    found = cases(results, budget)
    if not found:
        raise load.NotMeasured(f"{results.path}: no merged pair that a bound is about")
    return [("merge_bound", lambda: draw(results, budget, found))]


def table(results, name, budget):
    return results.variable(name, "policy", "budget", "layer", "bound", "delay")[:, budget]


def cases(results, budget):
    """[(policy, bound)] with any pairs, as indices."""
    pairs = np.nansum(table(results, "bound_pairs", budget), axis=(1, 3))
    return [(int(p), int(b)) for p, b in np.argwhere(pairs > 0)][:8]


def draw(results, budget, found):
    delays = results.data["delay"].values.astype(float)
    names = [str(name) for name in results.data["bound"].values]
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
    for ax, (p, b) in zip(axes.flat, found):
        for values, look in ((theta[p, :, b], MEASURED), (median[p, :, b], BOUND)):
            band(ax, at, values, style.line_style(look))
        ax.set_yscale("log")
        style.log_ticks(ax.yaxis)
        labels = [f"{delay:g}\n{share(applicable[p, :, b, d])}\n{share(violated[p, :, b, d])}"
                  for d, delay in enumerate(delays)]
        ax.set_xticks(at, labels)
        ax.set_title(f"{style.wrapped(results.policies[p], 28)}\nbound: {names[b]}")
    style.hide_unused(axes, len(found))
    return fig


def band(ax, at, values, look):
    seen = np.isfinite(values).any(axis=0)
    if not seen.any():
        return
    low, middle, high = (np.nanpercentile(values[:, seen], q, axis=0) for q in (0, 50, 100))
    ax.fill_between(at[seen], np.maximum(low, 1e-9), high, color=look["color"], alpha=0.15,
                    linewidth=0)
    ax.plot(at[seen], np.maximum(middle, 1e-9), **look)


def share(values):
    return f"{100 * np.nanmean(values):.0f} %" if np.isfinite(values).any() else "-"
