"""Stream error by budget: among the best predictors of what a model loses.

With a single budget each policy is a row with one dot.
"""

import functools

from .. import load, measures, style
from ...plain import counted

TITLE = "stream error by budget, a predictor of the model's loss"
LABEL = "stream error (root mean square over steps)"
MEASURE = "stream_error_rms"


def pages(results, options):
    if not results.has("stream_error_rms"):
        raise load.NotMeasured(f"{results.path}: no variable stream_error_rms")
    draw = draw_dots if results.budgets.size == 1 else draw_curves
    return style.pages("stream_error", [results.policies], functools.partial(draw, results))


def subtitle(results):
    return results.subtitle + measures.layers_note([results], ["stream_error"])


def draw_curves(results, policies, note):
    values = results.variable("stream_error_rms", "policy", "budget")
    rivals = values.sel(policy=[one for one in policies if not load.is_full(one)] or policies)
    left = rivals.sizes["policy"] - len(style.leaders(results, list(rivals.policy.values)))
    grey = f" Grey: {counted(left, 'other')}." if left else ""
    fig, axes = style.frame(f"Stream error by budget{note}",
                            f"{subtitle(results)}\nLower is better.{grey}", 1, 1, 3.0, (),
                            (style.budget_label(results), LABEL))
    style.budget_lines(axes[0, 0], results, policies, values)
    style.error_axis(axes[0, 0], rivals, measure=MEASURE)
    style.name_lines(axes[0, 0], results, rivals.policy.values, rivals.sortby("budget"))
    return fig


def draw_dots(results, policies, note):
    values = results.variable("stream_error_rms", "policy", "budget").sel(policy=policies)
    labels, size, row = style.row_labels(policies)
    budget = results.budget_text(results.budgets[0])
    fig, axes = style.frame(
        f"Stream error at budget {budget}{note}", subtitle(results),
        1, 1, 0.5 + row * len(policies))
    style.dot_rows(axes[0, 0], results, policies, values, labels, size)
    style.error_axis(axes[0, 0], values, "x", MEASURE)
    axes[0, 0].set_xlabel(LABEL)
    return fig
