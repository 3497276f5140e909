"""Metrics against the budget: the mean over layers above, the worst layer below.

With a single budget there is no curve to draw; then each policy is a row with one dot.
"""

import functools

from .. import load, style

TITLE = "metrics against the budget, mean over layers and worst layer"

# variable, name of the panel, which value is that of the worst layer
METRICS = (
    ("retained_importance_mean", "retained importance,\nmean over steps", "min"),
    ("retained_importance_min", "retained importance,\nworst step", "min"),
    ("output_error_mean", "output error,\nmean over steps", "max"),
    ("residual_error_max", "residual error,\nworst step", "max"),
)


def pages(results, options):
    metrics = [metric for metric in METRICS if results.has(metric[0])]
    if not metrics:
        raise load.Missing(f"{results.path}: none of the variables "
                           + ", ".join(name for name, _, _ in METRICS))
    size, draw = (30, draw_dots) if results.budgets.size == 1 else (10, draw_curves)
    return style.pages("budget", style.policy_pages(results, size),
                       functools.partial(draw, results, metrics))


def over_layers(results, name, worst):
    """[(what it is, values: policies x budgets)]: mean and worst layer, or the only layer."""
    values = results.variable(name, "policy", "budget", "layer")
    if len(results.layers) == 1:
        return [(f"layer {results.layers[0]}", values.squeeze("layer"))]
    return [("mean over layers", values.mean("layer")),
            ("worst layer", getattr(values, worst)("layer"))]


def draw_curves(results, metrics, policies, note):
    tables = [over_layers(results, name, worst) for name, _, worst in metrics]
    rows = len(tables[0])
    fig, axes = style.frame(
        f"Metrics against the budget{note}", results.subtitle, rows, len(metrics),
        1.9 if rows == 2 else 2.2,
        style.policy_keys(results, policies),
        (style.budget_label(results), ""), sharex=True)
    for column, (name, title, _), table in zip(axes.T, metrics, tables):
        for ax, (what, values) in zip(column, table):
            style.budget_lines(ax, results, policies, values)
            limits(ax, name)
            if ax in axes[:, 0]:
                ax.set_ylabel(what)
        column[0].set_title(f"{title} ({unit(name)})")
    return fig


def draw_dots(results, metrics, policies, note):
    tables = [over_layers(results, name, worst) for name, _, worst in metrics]
    labels, size, row = style.row_labels(policies)
    # The second marker is hollow and larger, so that equal values show both.
    looks = ({"color": style.COLOURS[0], "marker": "o", "linestyle": ""},
             {"color": style.COLOURS[1], "marker": "s", "linestyle": "", "fillstyle": "none",
              "markersize": 5.5})
    keys = [style.key(what, look) for (what, _), look in zip(tables[0], looks)]
    budget = results.budget_text(results.budgets[0])
    fig, axes = style.frame(f"Metrics at budget {budget}{note}", results.subtitle, 1, len(metrics),
                            0.8 + row * len(policies), keys, sharey=True)
    rows = range(len(policies))
    for ax, (name, title, _), table in zip(axes.flat, metrics, tables):
        for (_, values), look in zip(table, looks):
            ax.plot(values.sel(policy=policies).squeeze("budget"), rows, **look)
        ax.set_title(title)
        ax.set_xlabel(unit(name))
        ax.set_xlim(left=-0.03 * ax.get_xlim()[1])
        if name.startswith("retained"):
            ax.set_xlim(-0.03, 1.03)
    axes[0, 0].set_yticks(rows, labels, fontsize=size)
    axes[0, 0].invert_yaxis()
    return fig


def unit(name):
    return "fraction" if name.startswith("retained") else "relative"


def limits(ax, name):
    if name.startswith("retained"):
        ax.set_ylim(-0.02, 1.03)
    else:
        ax.set_ylim(bottom=0)
