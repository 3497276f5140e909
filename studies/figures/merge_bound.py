"""Change of a head's output by a merged pair, beside KeepKV's bounds on it (Theorem 5), by the
steps since the merge. Medians over pairs; the line is the median over layers, the band their range.
"""

import numpy as np

from .. import style

TITLE = "bounds of what a merged pair changes, beside what it does change, by delay"
NEEDS = tuple(f"bound_{name}" for name in ("perturbation", "median", "share_applicable",
                                           "share_violated", "pairs"))
LACKING = "no merged pair that a bound is about; kvsim replay --metric bound measures it"
MOST = 8   # panels


def find(results, options):
    """[{policy, bound}] with any pairs."""
    pairs = table(results, options, "bound_pairs").sum(["layer", "delay"])
    return [{"policy": policy, "bound": bound} for policy in pairs.policy.values
            for bound in pairs.bound.values if pairs.sel(policy=policy, bound=bound) > 0][:MOST]


def table(results, options, name):
    values = results.variable(name, "policy", "budget", "layer", "bound", "delay")
    return values.sel(budget=results.nearest_budget(options.budget))


def draw(results, options, cases):
    budget = results.nearest_budget(options.budget)
    delays = results.data["delay"].values.astype(float)
    theta, bound, applicable, violated, _ = (table(results, options, name) for name in NEEDS)
    looks = {"measured change of the output": style.line_style(0),
             "bound, where it applies": style.line_style(1)}
    fig, axes = style.panels(
        f"What merged pairs change at budget {results.budget_text(budget)}, and its bounds",
        f"{results.subtitle}\nmedians over pairs; line: median over layers; band: range over "
        "layers; below each delay: share of pairs the bound applies to, and of those beyond it",
        len(cases), 4, 2.2, [style.key(*one) for one in looks.items()],
        ("steps since the merge", "norm, before W_O (model units)"), sharey=True)
    at = np.arange(delays.size)
    for ax, case in zip(axes, cases):
        for values, look in zip((theta, bound), looks.values()):
            values = values.sel(case).assign_coords(delay=at).dropna("delay", how="all")
            if values.size:
                low, middle, high = values.quantile([0, 0.5, 1], "layer").clip(min=1e-9)
                ax.fill_between(values.delay, low, high, color=look["color"], alpha=0.15, linewidth=0)
                ax.plot(values.delay, middle, **look)
        ax.set_yscale("log")
        style.log_ticks(ax.yaxis)
        shares = [100 * one.sel(case).mean("layer").values for one in (applicable, violated)]
        ax.set_xticks(at, ["\n".join([f"{delay:g}", *("-" if np.isnan(one) else f"{one:.0f} %"
                                                      for one in own)])
                           for delay, *own in zip(delays, *shares)])
        ax.set_title(f"{style.wrapped(case['policy'], 28)}\nbound: {case['bound']}")
    return fig
