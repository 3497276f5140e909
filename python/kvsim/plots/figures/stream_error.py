"""Stream error against the budget: among the best predictors of what a model loses.

With a single budget each policy is a row with one dot.
"""

import functools

from .. import load, measures, style

TITLE = "stream error against the budget, a predictor of the model's loss"
LABEL = "stream error (root mean square over steps)"


def pages(results, options):
    if not results.has("stream_error_rms"):
        raise load.NotMeasured(f"{results.path}: no variable stream_error_rms")
    draw = draw_dots if results.budgets.size == 1 else draw_curves
    size = 30 if results.budgets.size == 1 else 10
    return style.pages("stream_error", style.policy_pages(results, size),
                       functools.partial(draw, results))


def subtitle(results):
    return results.subtitle + measures.layers_note([results], ["stream_error"])


def draw_curves(results, policies, note):
    values = results.variable("stream_error_rms", "policy", "budget")
    fig, axes = style.frame(f"Stream error against the budget{note}", subtitle(results), 1, 1, 2.6,
                            style.policy_keys(results, policies, values),
                            (style.budget_label(results), LABEL))
    style.budget_lines(axes[0, 0], results, policies, values)
    axes[0, 0].set_ylim(bottom=0)
    return fig


def draw_dots(results, policies, note):
    values = results.variable("stream_error_rms", "policy", "budget").sel(policy=policies)
    labels, size, row = style.row_labels(policies)
    budget = results.budget_text(results.budgets[0])
    fig, axes = style.frame(
        f"Stream error at budget {budget}{note}", subtitle(results),
        1, 1, 0.5 + row * len(policies))
    ax = axes[0, 0]
    ax.plot(values.squeeze("budget"), range(len(policies)), linestyle="", marker="o",
            color=style.COLOURS[0])
    ax.set_yticks(range(len(policies)), labels, fontsize=size)
    ax.set_ylim(len(policies) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel(LABEL)
    return fig
