"""Does compression change the order of the spans? Spearman's rank correlation between the order of
their class scores at a budget and that at the largest budget below 1: at the full cache all scores
are 1 and have no order (Pitfalls, Figures 2 and 3).
"""

import functools

import numpy as np
import xarray

from ...plain import counted
from .. import load, losses, statistics, style

TITLE = "rank correlation of the order of spans by budget"

LEAST_SPANS = 3   # of two, a rank correlation is 1 or -1


def pages(results, options):
    results.need_spans(losses.SCORE)
    if len(results.spans) < LEAST_SPANS:
        raise load.Missing(f"the order of {len(results.spans)} labelled spans is noise (a rank "
                           f"correlation of two is 1 or -1); it takes {LEAST_SPANS} or more")
    if np.sum(results.budgets < 1) < 2:
        raise load.NotMeasured(f"{results.path}: fewer than two budgets below 1")
    groups = [load.competitors(results.policies)]
    return style.pages("span_order", groups, functools.partial(draw, results))


def correlations(results):
    """[policy, budget]: Spearman with the largest budget below 1; NaN at that budget and at 1."""
    scores = losses.scores(results)
    reference = results.budgets[results.budgets < 1].max()
    found = xarray.apply_ufunc(statistics.spearman, scores, scores.sel(budget=reference),
                               input_core_dims=[["span"]] * 2, vectorize=True)
    return found.where(found.budget < reference), reference


def draw(results, policies, note):
    values, reference = correlations(results)
    fig, axes = style.frame(
        f"Order of the spans by class score{note}",
        f"{results.subtitle}\nSpearman's rank correlation over {counted(len(results.spans), 'span')} with the "
        f"order at budget {results.budget_text(reference)}; a budget whose scores are all equal "
        "has none",
        1, 1, 2.6,
        style.policy_keys(results, policies, values),
        (style.budget_label(results), "rank correlation"))
    style.budget_lines(axes[0, 0], results, policies, values)
    axes[0, 0].set_ylim(-1.05, 1.05)
    axes[0, 0].axhline(0, color="black", linewidth=0.7, linestyle=":")
    return fig
