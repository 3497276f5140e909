"""Lines over budgets, as several figures draw them."""

import numpy as np

from . import style


def over_budgets(ax, budgets, policies, bands, found):
    """A line per policy, the bands of some. found(policy, budget): (mean, low, high, ...) or None."""
    looks, ends = style.policy_looks(policies), []
    for policy in policies:
        points = [(budget, one[:3]) for budget in budgets
                  if (one := found(policy, budget)) is not None]
        if not points:
            continue
        at = [budget for budget, _ in points]
        mean, low, high = np.array([one for _, one in points]).T
        ax.plot(at, mean, **{**looks[policy], "linewidth": 1.3})
        style.band(ax, at, (low, high), looks[policy], policy in bands)
        ends.append((at[-1], mean[-1], policy, looks[policy]["color"]))
    ax.set(xscale="log", yscale="log")
    style.log_ticks(ax.yaxis, 6)
    ax.set_xticks(budgets, [f"{b:g}" for b in budgets])
    ax.minorticks_off()
    style.end_labels(ax, ends)
