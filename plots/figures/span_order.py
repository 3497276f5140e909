"""Does compression change the order of the spans? Spearman's rank correlation between the order of
their class scores at a budget and that at the largest budget below 1: at the full cache all scores
are 1 and have no order (Pitfalls, Figures 2 and 3).
"""

import functools

import numpy as np

from .. import load, losses, statistics, style

TITLE = "rank correlation of the order of spans against compression ratio"


def pages(results, options):
    if not results.has(losses.SCORE) or results.data.sizes.get("span", 0) < 2:
        raise load.NotMeasured(f"{results.path}: fewer than two labelled spans")
    if all(style.is_full(one) for one in results.policies) or np.sum(results.budgets < 1) < 2:
        raise load.NotMeasured(f"{results.path}: no policy that drops entries at two budgets")
    lines = [[one for one in group if not style.is_full(one)]
             for group in style.policy_pages(results)]
    return style.pages("span_order", lines, functools.partial(draw, results))


def correlations(results):
    """[policy, budget]: Spearman with the largest budget below 1; NaN at that budget and at 1."""
    scores, budgets = losses.scores(results), results.budgets
    below = np.where(budgets < 1, budgets, -1)
    reference = int(np.argmax(below))
    values = np.full(scores.shape[:2], np.nan)
    for p in range(scores.shape[0]):
        for b in np.flatnonzero(budgets < 1):
            if b != reference:
                values[p, b] = statistics.spearman(scores[p, b], scores[p, reference])
    return values, reference


def draw(results, policies, note):
    values, reference = correlations(results)
    spans = results.data.sizes["span"]
    fig, axes = style.frame(
        f"Order of the spans by class score{note}",
        f"{results.subtitle}\nSpearman's rank correlation over {spans} spans with the order at "
        f"budget {results.budget_text(reference)}; a budget whose scores are all equal has none",
        1, 1, 2.6,
        [style.key(policy, style.policy_style(results, policy),
                   values[results.policies.index(policy)]) for policy in policies],
        ("compression ratio (1 − budget)", "rank correlation"))
    order = np.argsort(results.budgets, kind="stable")
    for policy in policies:
        axes[0, 0].plot(1 - results.budgets[order],
                        values[results.policies.index(policy), order],
                        **{"zorder": 2, **style.policy_style(results, policy)})
    axes[0, 0].set_ylim(-1.05, 1.05)
    axes[0, 0].axhline(0, color="black", linewidth=0.7, linestyle=":")
    return fig
