"""How well each labelled span survives, and whether compression changes the order of the spans
(Pitfalls, Figures 2 and 3).

`span_scores` has the class score of each span (retained importance of its own entries) against the
compression ratio; `span_order` Spearman's rank correlation between the order at a budget and that
at the largest budget below 1: at the full cache all scores are 1 and have no order.
"""

import functools

import numpy as np

from .. import load, losses, statistics, style

TITLE = "class score per span against compression ratio, and rank correlation of their order"
PAGE_PANELS = 20


def pages(results, options):
    if not results.has(losses.SCORE) or results.data.sizes.get("span", 0) == 0:
        raise load.NotMeasured(f"{results.path}: no labelled spans")
    policies = [one for one in results.policies if not style.is_full(one)]
    if not policies:
        raise load.NotMeasured(f"{results.path}: no policy that drops entries")
    groups = [policies[first:first + PAGE_PANELS]
              for first in range(0, len(policies), PAGE_PANELS)]
    found = style.pages("span_scores", groups, functools.partial(draw, results))
    if results.data.sizes["span"] > 1 and np.sum(results.budgets < 1) > 1:
        lines = [[one for one in group if not style.is_full(one)]
                 for group in style.policy_pages(results)]
        found += style.pages("span_order", lines, functools.partial(draw_order, results))
    return found


def draw(results, policies, note):
    scores = losses.scores(results)
    spans = [str(span) for span in results.data["span"].values]
    keys = [style.key(span, style.line_style(i), scores[..., i]) for i, span in enumerate(spans)]
    rows, columns = style.panel_grid(len(policies), 5 if len(policies) > 4 else 4)
    titles = [style.wrapped(policy, 26) for policy in policies]
    lines = max(title.count("\n") + 1 for title in titles)
    fig, axes = style.frame(
        f"Class score of each span, mean over layers and steps{note}",
        f"{results.subtitle}\nclass score: retained importance of the span's own entries, a proxy",
        rows, columns, (1.35 if rows > 1 else 1.8) + 0.1 * lines, keys,
        ("compression ratio (1 − budget)", "retained importance of the span"),
        sharex=True, sharey=True)
    order = np.argsort(results.budgets, kind="stable")
    for ax, policy, title in zip(axes.flat, policies, titles):
        for i in range(len(spans)):
            ax.plot(1 - results.budgets[order],
                    scores[results.policies.index(policy), order, i], **style.line_style(i))
        ax.set_title(title, fontsize=6)
        ax.set_ylim(-0.03, 1.03)
    style.hide_unused(axes, len(policies))
    return fig


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


def draw_order(results, policies, note):
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
