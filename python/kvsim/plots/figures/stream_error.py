"""Stream error by budget: among the best predictors of what a model loses.

With a single budget each policy is a row with one dot."""

from .. import load, measures, style
from ...plain import counted

TITLE = "stream error by budget, a predictor of the model's loss"
LABEL = "stream error (root mean square over steps)"
MEASURE = "stream_error_rms"
NEEDS = (MEASURE,)


def draw(results, options):
    values = results.variable(MEASURE, "policy", "budget")
    about = measures.layers_note([results]) + measures.held_note([results], results.policies)
    if results.budgets.size == 1:
        fig, (ax,) = style.dot_panels(results, results.policies, "Stream error", about, {"": values}, 1)
        style.error_axis(ax, values, "x", MEASURE)
        ax.set_xlabel(LABEL)
        return fig
    rivals = [one for one in results.policies if not load.is_full(one)] or results.policies
    left = len(rivals) - len(style.leaders(results, rivals))
    grey = f" Grey: {counted(left, 'other')}." if left else ""
    return named_lines(results, results.policies, "Stream error by budget",
                       f"{about}\nLower is better.{grey}", {LABEL: (MEASURE, values)}, 3.0)


def named_lines(results, policies, title, about, panels, height):
    """Panels {label: (measure, values [policy, budget])} of errors or losses with names at the lines."""
    fig, axes = style.frame(title, results.subtitle + about, 1, len(panels), height, (),
                            (style.budget_label(results), ""))
    for ax, (label, (measure, values)) in zip(axes.flat, panels.items()):
        style.budget_lines(ax, results, policies, values)
        rivals = values.sel(policy=style.leaders(results, policies))
        style.error_axis(ax, rivals, measure=measure)
        lines = {policy: rivals.sel(policy=policy).sortby("budget").dropna("budget") for policy in rivals.policy.values}
        style.end_labels(ax, [(float(line.budget[-1]), float(line[-1]), policy,
                               style.policy_style(results, policy)["color"])
                              for policy, line in lines.items() if line.size])
        ax.set_ylabel(label)
    return fig
