"""Does compression change the order of the spans? Spearman's rank correlation between the order of
their class scores at a budget and that at the largest budget below 1: at the full cache all scores
are 1 and have no order (Pitfalls, Figures 2 and 3).
"""

import numpy as np
import xarray

from ...plain import counted
from .. import load, statistics, style
from . import losses

TITLE = "rank correlation of the order of spans by budget"
NEEDS = ("span", losses.SCORE)
LACKING = "no labelled spans"
LEAST_SPANS = 3   # of two, a rank correlation is 1 or -1


def pages(results, options):
    if len(results.spans) < LEAST_SPANS:
        raise load.Missing(f"the order of {len(results.spans)} labelled spans is noise (a rank "
                           f"correlation of two is 1 or -1); it takes {LEAST_SPANS} or more")
    if np.sum(results.budgets < 1) < 2:
        raise load.NotMeasured(f"{results.path}: fewer than two budgets below 1")
    return {"span_order": lambda: draw(results)}


def correlations(results):
    """[policy, budget]: Spearman with the largest budget below 1; NaN at that budget and at 1."""
    scores = losses.scores(results)
    reference = results.budgets[results.budgets < 1].max()
    found = xarray.apply_ufunc(statistics.spearman, scores, scores.sel(budget=reference),
                               input_core_dims=[["span"]] * 2, vectorize=True)
    return found.where(found.budget < reference), reference


def draw(results):
    values, reference = correlations(results)
    fig, (ax,) = style.budget_panels(
        results, load.competitors(results.policies), "Order of the spans by class score",
        f"\nSpearman's rank correlation over {counted(len(results.spans), 'span')} with the "
        f"order at budget {results.budget_text(reference)}; a budget whose scores are all equal "
        "has none", {"": values}, 1, 2.6, "rank correlation")
    ax.set_ylim(-1.05, 1.05)
    ax.axhline(0, **style.DOTTED)
    return fig
