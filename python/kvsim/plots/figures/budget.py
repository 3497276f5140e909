"""Stream error, retained importance and errors by budget: means above, worst cases below.

With a single budget there is no curve to draw; then each policy is a row with one dot."""

from .. import load, measures, style

TITLE = "stream error, retained importance, output and residual error by budget"
LACKING = "none of the measures that it shows"
COLUMNS = 3
MEASURE = "stream_error_rms"


def find(results, options):
    return [one for one in measures.SUMMARIES if results.has(one.variable)]


def draw(results, options, panels):
    titles = {f"{one.title(results.layers)} ({one.unit})": one.table(results) for one in panels}
    about = measures.layers_note([results], [panels[0].measure]) + measures.held_note([results], results.policies)
    if results.budgets.size == 1:
        fig, axes = style.dot_panels(results, results.policies, "Measures", about, titles, COLUMNS)
    else:
        fig, axes = style.budget_panels(results, results.policies, "Measures by budget", about, titles, COLUMNS, 2.1)
    axis = "x" if results.budgets.size == 1 else "y"
    rivals = [one for one in results.policies if not load.is_full(one)]
    for ax, one, values in zip(axes, panels, titles.values()):
        if one.more_is_better:
            ax.set(**{f"{axis}lim": (-0.03, 1.03)})
        else:
            style.error_axis(ax, values.sel(policy=rivals), axis, one.variable)
    return fig
