"""Correlation of the importance that a policy kept with that of the full cache, over budgets.

Needs `kvsim replay --metric importance_pearson,importance_cosine`.
"""

from .. import style

TITLE = "correlation of kept importance with the full cache, against the budget"
NAMES = {"importance_pearson": "Pearson", "importance_cosine": "cosine"}
LACKING = "no importance_pearson or importance_cosine; kvsim replay --metric importance_pearson measures it"


def find(results, options):
    return [name for name in NAMES if results.has(name)]


def draw(results, options, names):
    values = {NAMES[name]: results.variable(name, "policy", "budget", "layer", "step") for name in names}
    fig, axes = style.budget_panels(
        results, results.policies, "Correlation of importance with the full cache",
        "\nover all heads and entries at one step", {
            f"{name}, {what}": getattr(of, fold)(["layer", "step"]) for fold, what in (
                ("mean", "mean over layers and steps"), ("min", "worst layer and step"))
            for name, of in values.items()}, len(names), 1.8)
    for ax in axes:
        ax.set_ylim(top=1.03)
    return fig
