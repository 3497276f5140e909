"""Estimated against true risk of prompt entries (DefensiveKV 3.1 to 3.3).

True risk is the largest importance that an entry has at any later step for any head that shares it;
estimates are what a window of the prompt says. Needs `kvsim replay --metric risk` (or --fragility).
First figure: sampled pairs, one panel per estimator. Second: how good each is, per layer.
"""

import functools

import numpy as np

from .. import style
from ...plain import counted
from .by_layer import layer_axis

TITLE = "estimated against true risk: sampled entries, and how good each estimator is"
NEEDS = ("risk_true", "risk_estimate")
LACKING = "no risk; kvsim replay --metric risk measures it"
NAMES = {"single": "one query", "mean": "mean over the window", "max": "maximum",
         "max_prior": "maximum, prior", "defensivekv": "defensivekv"}
TABLE = (("risk_spearman", "Spearman with true risk", "rank correlation"),
         ("risk_log_ratio_median", "median of ln(estimate / true)", "nats; below 0: too low"),
         ("risk_underestimated", "underestimated entries", "fraction of candidates"),
         ("risk_prior_exceeds", "prior above true risk", "fraction of candidates"))


def pages(results, options):
    tables = {name: results.variable(name, "layer", "estimator") for name, _, _ in TABLE}
    return {"risk": functools.partial(scatter, results, tables),
            "risk-layers": functools.partial(by_layer, results, tables)}


def scatter(results, tables):
    truth = results.variable("risk_true", "layer", "sample")
    estimate = results.variable("risk_estimate", "layer", "estimator", "sample")
    rank, under = (tables[name].mean("layer") for name in ("risk_spearman", "risk_underestimated"))
    fig, axes = style.panels(
        "Estimated against true risk", f"{results.subtitle}\n{truth.sample.size} evenly spaced "
        f"entries of each of {counted(len(results.layers), 'layer')}; on the line the estimate is right, "
        "below it too low; the lowest hundredth is not shown", rank.size, 5, 1.9, (),
        ("true risk (largest later importance, model units)", "estimated risk (model units)"),
        sharex=True, sharey=True)
    some = np.concatenate([array.values[array.values > 0] for array in (truth, estimate)])
    low, high = (np.percentile(some, 1), some.max()) if some.size else (0.1, 1.0)
    for ax, name in zip(axes, rank.estimator.values):
        ax.loglog(truth.values.ravel(), estimate.sel(estimator=name).values.ravel(), ".",
                  color=style.COLOURS[0], alpha=0.25, markersize=1.4, markeredgewidth=0,
                  rasterized=True)
        ax.plot((low, high), (low, high), color="black", linewidth=0.8)
        ax.set_title(f"{NAMES.get(name, name)}\nSpearman {rank.sel(estimator=name):.2f}, "
                     f"{100 * under.sel(estimator=name):.0f} % low", fontsize=6)
        ax.set(xlim=(low, 1.5 * high), ylim=(low, 1.5 * high))
        for axis in (ax.xaxis, ax.yaxis):
            style.log_ticks(axis)
    return fig


def by_layer(results, tables):
    names = tables["risk_spearman"].estimator.values
    looks = {name: style.line_style(k) for k, name in enumerate(names)}
    fig, axes = style.frame(
        "How good estimates of the true risk are", f"{results.subtitle}\nover the candidates of a "
        "KV head, mean over KV heads", 2, 2, 1.7,
        [style.key(NAMES.get(name, name), look) for name, look in looks.items()],
        ("layer of the model", ""), sharex=True)
    for ax, (variable, title, unit) in zip(axes.flat, TABLE):
        values = tables[variable]
        for name in values.dropna("estimator", how="all").estimator.values:
            ax.plot(values.layer, values.sel(estimator=name), **looks[name])
        ax.set(title=title, ylabel=unit)
        if variable == "risk_log_ratio_median":
            ax.axhline(0, **style.DOTTED)
        else:
            ax.set_ylim(min(-0.02, values.fillna(0).min()), 1.02)
    layer_axis(axes[1, 0], results)
    columns = np.column_stack([values.mean("layer") for values in tables.values()])
    style.numbers(fig, ["estimator", *tables], [[name, *row] for name, row in zip(names, columns)])
    return fig
