"""Evicted entries that later queries attend to most, beside chance (KeepKV, Figure 2b).

Needs `kvsim replay --metric late_importance`.
"""

import functools

import numpy as np

from .. import load, style

TITLE = "evicted entries that later queries attend to most, beside chance, against the budget"
PANELS = (("late_share", "evicted share of a query's top 20 %"),
          ("relative", "the same over chance"),
          ("late_recall", "evicted entries in any step's top 20 %"))


def pages(results, options):
    if not results.has("late_share", "late_share_chance", "late_recall"):
        raise load.NotMeasured(f"{results.path}: no late_share; "
                               "kvsim replay --metric late_importance measures it")
    groups = [[one for one in group if not style.is_full(one)]
              for group in style.policy_pages(results)]
    if not groups[0]:
        raise load.NotMeasured(f"{results.path}: no policy that drops entries")
    return style.pages("late_importance", groups, functools.partial(draw, results))


def draw(results, policies, note):
    dims = ("policy", "budget", "layer")
    share, chance, recall = (results.variable(name, *dims)
                             for name in ("late_share", "late_share_chance", "late_recall"))
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(chance > 0, share / chance, np.nan)
    chosen = [results.policies.index(policy) for policy in policies]
    expected = {"color": "0.45", "linestyle": ":", "linewidth": 1.2}
    fig, axes = style.frame(
        f"Evicted entries that became important later{note}",
        f"{results.subtitle}\nmean over layers, heads and steps; a query's top 20 %: the prompt "
        "entries it attends to most; chance: share of entries that were evicted", 1, 3, 2.2,
        [style.key(policy, style.policy_style(results, policy)) for policy in policies]
        + [style.key("chance (range over policies)", expected)],
        (style.budget_label(results), ""))
    order = np.argsort(results.budgets, kind="stable")
    over = functools.partial(style.mean_over, axis=2)
    for ax, (_, title), values in zip(axes[0], PANELS, (share, relative, recall)):
        values = over(values)
        for k, policy in zip(chosen, policies):
            ax.plot(results.budgets[order], values[k, order],
                    **{"zorder": 2, **style.policy_style(results, policy)})
        style.budget_axis(ax, results)
        ax.set_title(title)
        ax.set_ylim(0, None if title.startswith("the same") else 1.02)
    level = over(chance)[chosen][:, order]
    for edge in (level.min(axis=0), level.max(axis=0)):
        axes[0, 0].plot(results.budgets[order], edge, **expected)
    axes[0, 1].axhline(1, **expected)
    axes[0, 0].set_ylabel("fraction")
    axes[0, 1].set_ylabel("ratio; below 1: better than chance")
    axes[0, 2].set_ylabel("fraction of the evicted entries")
    return fig
