"""Estimated against true risk of prompt entries (DefensiveKV 3.1 to 3.3).

True risk is the largest importance that an entry has at any later step for any head that shares it;
estimates are what a window of the prompt says. Needs `kvsim replay --metric risk` (or --fragility).
First figure: sampled pairs, one panel per estimator. Second: how good each is, per layer.
"""

import functools

import numpy as np

from .. import style
from ...plain import counted

TITLE = "estimated against true risk: sampled entries, and how good each estimator is"
NAMES = {"single": "one query", "mean": "mean over the window", "max": "maximum",
         "max_prior": "maximum, prior", "defensivekv": "defensivekv"}
TABLE = (("risk_spearman", "Spearman with true risk", "rank correlation"),
         ("risk_log_ratio_median", "median of ln(estimate / true)", "nats; below 0: too low"),
         ("risk_underestimated", "underestimated entries", "fraction of candidates"),
         ("risk_prior_exceeds", "prior above true risk", "fraction of candidates"))


def pages(results, options):
    results.need("risk", "risk_true", "risk_estimate")
    return [("risk", functools.partial(scatter, results)),
            ("risk-layers", functools.partial(by_layer, results))]


def estimators(results):
    return [str(name) for name in results.data["estimator"].values]


def means(results, name):
    return results.variable(name, "layer", "estimator").mean("layer")


def scatter(results):
    truth = results.variable("risk_true", "layer", "sample")
    estimate = results.variable("risk_estimate", "layer", "estimator", "sample")
    names = estimators(results)
    rank, under = means(results, "risk_spearman"), means(results, "risk_underestimated")
    rows, columns = style.panel_grid(len(names), 5)
    fig, axes = style.frame(
        "Estimated against true risk", f"{results.subtitle}\n{truth.sample.size} evenly spaced "
        f"entries of each of {counted(len(results.layers), 'layer')}; on the line the estimate is right, "
        "below it too low; the lowest hundredth is not shown", rows, columns, 1.9, (),
        ("true risk (largest later importance, model units)", "estimated risk (model units)"),
        sharex=True, sharey=True)
    some = np.concatenate([array.values[array.values > 0] for array in (truth, estimate)])
    ends = (np.percentile(some, 1), some.max()) if some.size else (0.1, 1.0)
    for ax, name in zip(axes.flat, names):
        ax.loglog(truth.values.ravel(), estimate.sel(estimator=name).values.ravel(), ".",
                  color=style.COLOURS[0], alpha=0.25, markersize=1.4, markeredgewidth=0,
                  rasterized=True)
        ax.plot(ends, ends, color="black", linewidth=0.8)
        ax.set_title(f"{NAMES.get(name, name)}\nSpearman {rank.sel(estimator=name):.2f}, "
                     f"{100 * under.sel(estimator=name):.0f} % low", fontsize=6)
        ax.set_xlim(ends[0], 1.5 * ends[1])
        ax.set_ylim(ends[0], 1.5 * ends[1])
        for axis in (ax.xaxis, ax.yaxis):
            style.log_ticks(axis)
    style.hide_unused(axes, len(names))
    return fig


def by_layer(results):
    names = estimators(results)
    looks = {name: style.line_style(k) for k, name in enumerate(names)}
    fig, axes = style.frame(
        "How good estimates of the true risk are", f"{results.subtitle}\nover the candidates of a "
        "KV head, mean over KV heads", 2, 2, 1.7,
        [style.key(NAMES.get(name, name), looks[name]) for name in names],
        ("layer of the model", ""), sharex=True)
    for ax, (variable, title, unit) in zip(axes.flat, TABLE):
        values = results.variable(variable, "layer", "estimator")
        for name in values.dropna("estimator", how="all").estimator.values:
            ax.plot(values.layer, values.sel(estimator=name), **looks[name])
        ax.set_title(title)
        ax.set_ylabel(unit)
        if variable == "risk_log_ratio_median":
            ax.axhline(0, color="black", linewidth=0.7, linestyle=":")
        else:
            ax.set_ylim(min(-0.02, values.fillna(0).min()), 1.02)
    style.layer_axis(axes[1, 0], results)
    variables = [variable for variable, _, _ in TABLE]
    columns = np.column_stack([means(results, variable) for variable in variables])
    style.numbers(fig, ["estimator", *variables],
                  [[name, *row] for name, row in zip(names, columns)])
    return fig
