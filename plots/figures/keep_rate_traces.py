"""Keep rate of each span against the compression ratio, a row per trace and a column per policy:
the two orders of the instructions below each other (Pitfalls, Figures 7 and 10; with a whitelist
11, with fair eviction 12).
"""

import functools
import warnings

import numpy as np

from plots import load, style

TITLE = "keep rate per span against compression ratio, traces down, policies across"
READS = "several"
COLUMNS = 6


def pages(several, options):
    for results in several:
        if not results.has("keep_rate", "bias_index"):
            raise load.NotMeasured(f"{results.path}: no labelled spans")
    load.spans(several)
    policies = [one for one in load.common_policies(several) if not style.is_full(one)]
    groups = [policies[first:first + COLUMNS] for first in range(0, len(policies), COLUMNS)]
    if not groups:
        raise load.NotMeasured("no policy that drops entries")
    return style.pages("keep_rate_traces", groups, functools.partial(draw, several))


def curves(results):
    """(keep rate [policy, budget, span], unbiased line [policy, budget]), means over layers."""
    dims = ("policy", "budget", "span", "layer")
    rates, bias = results.variable("keep_rate", *dims), results.variable("bias_index", *dims)
    with warnings.catch_warnings():
        # An empty span has no rate; its NaN stays NaN and is not drawn.
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(rates, axis=3), np.nanmean(rates - bias, axis=(2, 3))


def draw(several, policies, note):
    spans = load.spans(several)
    looks = {span: style.line_style(i) for i, span in enumerate(spans)}
    reference = {"color": style.REFERENCE, "linestyle": "--", "linewidth": 0.9, "marker": ""}
    keys = [style.key(span, look) for span, look in looks.items()]
    keys.append(style.key("unbiased (realised rate)", reference))
    titles = [style.wrapped(policy, 20) for policy in policies]
    lines = max(title.count("\n") + 1 for title in titles)
    models = ", ".join(sorted({results.model for results in several}))
    fig, axes = style.frame(
        f"Keep rate per span and trace, mean over layers{note}",
        f"{models}; rows: " + ", ".join(load.names(several)), len(several), len(policies),
        1.25 + 0.1 * lines / len(several), keys,
        ("compression ratio (1 − budget)", "keep rate (fraction of the span)"),
        sharex=True, sharey=True)
    for row, results, name in zip(axes, several, load.names(several)):
        keep, unbiased = curves(results)
        order = np.argsort(results.budgets, kind="stable")
        ratio = 1 - results.budgets[order]
        present = [str(span) for span in results.data["span"].values]
        row[0].set_ylabel(style.narrow(name, 20), fontsize=6)
        for ax, policy in zip(row, policies):
            index = results.policies.index(policy)
            ax.plot(ratio, unbiased[index, order], zorder=1, **reference)
            for i, span in enumerate(present):
                ax.plot(ratio, keep[index, order, i], zorder=2, **looks[span])
            if ratio.size == 1 or np.ptp(ratio) > 0.3:
                ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xticks=[0, 0.5, 1],
                       yticks=[0, 0.5, 1])
    for ax, title in zip(axes[0], titles):
        ax.set_title(title, fontsize=7 if lines == 1 else 5.5)
    return fig
