"""Evicted entries that later queries attend to most, beside chance (KeepKV, Figure 2b)."""

from .. import load, style

TITLE = "evicted entries that later queries attend to most, beside chance, against the budget"
NEEDS = ("late_share", "late_share_chance", "late_recall")
LACKING = "no late_importance; kvsim replay --metric late_importance measures it"


def draw(results, options):
    share, chance, recall = (results.variable(name, "policy", "budget", "layer") for name in NEEDS)
    policies = load.competitors(results.policies)
    expected = {"color": "0.45", "linestyle": ":", "linewidth": 1.2}
    panels = {"evicted share of a query's top 20 %": share,
              "the same over chance": share / chance.where(chance > 0),
              "evicted entries in any step's top 20 %": recall}
    fig, axes = style.budget_panels(
        results, policies, "Evicted entries that became important later",
        "\nmean over layers, heads and steps; a query's top 20 %: the prompt "
        "entries it attends to most; chance: share of entries that were evicted",
        {title: values.mean("layer") for title, values in panels.items()}, 3, 2.2,
        keys=[style.key("chance (range over policies)", expected)])
    level = chance.mean("layer").sel(policy=policies).sortby("budget")
    for edge in (level.min("policy"), level.max("policy")):
        axes[0].plot(edge.budget, edge, **expected)
    axes[1].axhline(1, **expected)
    for ax, label, top in zip(axes, ("fraction", "ratio; below 1: better than chance",
                                     "fraction of the evicted entries"), (1.02, None, 1.02)):
        ax.set(ylabel=label, ylim=(0, top))
    return fig
