"""Evicted entries that later queries attend to most, beside chance (KeepKV, Figure 2b).

Needs `kvsim replay --metric late_importance`.
"""

import functools

from .. import load, style

TITLE = "evicted entries that later queries attend to most, beside chance, against the budget"
PANELS = (("late_share", "evicted share of a query's top 20 %"),
          ("relative", "the same over chance"),
          ("late_recall", "evicted entries in any step's top 20 %"))


def pages(results, options):
    results.need("late_importance", "late_share", "late_share_chance", "late_recall")
    return style.pages("late_importance", [load.competitors(results.policies)],
                       functools.partial(draw, results))


def draw(results, policies, note):
    dims = ("policy", "budget", "layer")
    share, chance, recall = (results.variable(name, *dims)
                             for name in ("late_share", "late_share_chance", "late_recall"))
    relative = share / chance.where(chance > 0)
    expected = {"color": "0.45", "linestyle": ":", "linewidth": 1.2}
    fig, axes = style.frame(
        f"Evicted entries that became important later{note}",
        f"{results.subtitle}\nmean over layers, heads and steps; a query's top 20 %: the prompt "
        "entries it attends to most; chance: share of entries that were evicted", 1, 3, 2.2,
        [*style.policy_keys(results, policies),
         style.key("chance (range over policies)", expected)],
        (style.budget_label(results), ""))
    for ax, (_, title), values in zip(axes[0], PANELS, (share, relative, recall)):
        style.budget_lines(ax, results, policies, values.mean("layer"))
        ax.set_title(title)
        ax.set_ylim(0, None if title.startswith("the same") else 1.02)
    level = chance.mean("layer").sel(policy=policies).sortby("budget")
    for edge in (level.min("policy"), level.max("policy")):
        axes[0, 0].plot(edge.budget, edge, **expected)
    axes[0, 1].axhline(1, **expected)
    axes[0, 0].set_ylabel("fraction")
    axes[0, 1].set_ylabel("ratio; below 1: better than chance")
    axes[0, 2].set_ylabel("fraction of the evicted entries")
    return fig
