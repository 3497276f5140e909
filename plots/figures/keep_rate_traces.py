"""Keep rate of each span against the compression ratio, a row per order of the spans and a column
per policy: both orders of the instructions below each other (Pitfalls, Figures 7 and 10; with a
whitelist 11, with fair eviction 12).

Traces whose spans come in the same order share a row, which shows their mean and its interval.
"""

import functools
import warnings

import numpy as np

from .. import load, statistics, style

TITLE = "keep rate per span against compression ratio, orders of the spans down, policies across"
READS = "several"
COLUMNS = 6


def pages(several, options):
    rows = orders(several)
    policies = [one for one in load.common_policies(several) if not style.is_full(one)]
    groups = [policies[first:first + COLUMNS] for first in range(0, len(policies), COLUMNS)]
    if not groups:
        raise load.NotMeasured("no policy that drops entries")
    return style.pages("keep_rate_traces", groups, functools.partial(draw, several, rows))


def orders(several):
    """{label: results files whose spans come in one order}, in the order of the files."""
    load.spans(several)
    found = {}
    for results in several:
        if not results.has("keep_rate", "bias_index"):
            raise load.NotMeasured(f"{results.path}: no labelled spans")
        names = [str(name) for name in results.data["span"].values]
        if results.has("span_begin"):
            begins = results.data["span_begin"].values
            names = [names[i] for i in np.argsort(begins, kind="stable")]
        found.setdefault((*names, *results.budgets), (names[0], []))[1].append(results)
    rows = {}
    for first, files in found.values():
        plain = label(first, files, several)
        rows[plain if plain not in rows else f"{plain} ({len(rows) + 1})"] = files
    return rows


def label(first, files, several):
    if len(files) == 1:
        return load.names(several)[several.index(files[0])]
    return f"{first} first, {len(files)} traces"


def curves(results, policies):
    """(keep rate [policy, budget, span], unbiased line [policy, budget]), means over layers."""
    dims = ("policy", "budget", "span", "layer")
    rates, bias = results.variable("keep_rate", *dims), results.variable("bias_index", *dims)
    order = np.argsort(results.budgets, kind="stable")
    chosen = np.ix_([results.policies.index(policy) for policy in policies], order)
    with warnings.catch_warnings():
        # An empty span has no rate; its NaN stays NaN and is not drawn.
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(rates, axis=3)[chosen], np.nanmean(rates - bias, axis=(2, 3))[chosen]


def of_files(files, policies):
    """(span names, keep rate [policy, budget, span, trace], unbiased line [policy, budget, trace]).
    """
    names = [str(span) for span in files[0].data["span"].values]
    keep, unbiased = [], []
    for results in files:
        own = [str(span) for span in results.data["span"].values]
        rates, line = curves(results, policies)
        keep.append(rates[..., [own.index(name) for name in names]])
        unbiased.append(line)
    return names, np.stack(keep, axis=3), np.stack(unbiased, axis=2)


def draw(several, rows, policies, note):
    spans = load.spans(several)
    looks = {span: style.line_style(i) for i, span in enumerate(spans)}
    reference = {"color": style.REFERENCE, "linestyle": "--", "linewidth": 0.9, "marker": ""}
    keys = [style.key(span, look) for span, look in looks.items()]
    keys.append(style.key("unbiased (realised rate)", reference))
    titles = [style.wrapped(policy, 20) for policy in policies]
    lines = max(title.count("\n") + 1 for title in titles)
    models = ", ".join(sorted({results.model for results in several}))
    bands = any(len(files) > 1 for files in rows.values())
    fig, axes = style.frame(
        f"Keep rate per span, mean over layers{note}",
        f"{models}; rows: {'; '.join(rows)}"
        + ("\nlines and bands: mean over traces and its 95 % bootstrap interval" if bands else ""),
        len(rows), len(policies), 1.25 + 0.1 * lines / len(rows), keys,
        ("compression ratio (1 − budget)", "keep rate (fraction of the span)"),
        sharex=True, sharey=True)
    table = []
    for row, (name, files) in zip(axes, rows.items()):
        present, keep, unbiased = of_files(files, policies)
        budgets = np.sort(files[0].budgets)
        ratio = 1 - budgets
        rate, band = statistics.over_traces(keep)
        bias, bias_band = statistics.over_traces(keep - unbiased[:, :, None])
        row[0].set_ylabel(style.narrow(name.replace(", ", ",\n"), 20), fontsize=6)
        for p, (ax, policy) in enumerate(zip(row, policies)):
            ax.plot(ratio, unbiased[p].mean(axis=1), zorder=1, **reference)
            for i, span in enumerate(present):
                ax.plot(ratio, rate[p, :, i], zorder=2, **looks[span])
                style.band(ax, ratio, band[:, p, :, i], looks[span], len(files) > 1)
                table += [[name, len(files), policy, budgets[b], span, rate[p, b, i],
                           *band[:, p, b, i], bias[p, b, i], *bias_band[:, p, b, i]]
                          for b in range(budgets.size)]
            if ratio.size == 1 or np.ptp(ratio) > 0.3:
                ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xticks=[0, 0.5, 1],
                       yticks=[0, 0.5, 1])
    for ax, title in zip(axes[0], titles):
        ax.set_title(title, fontsize=7 if lines == 1 else 5.5)
    style.numbers(fig, ["traces", "count", "policy", "budget", "span", "keep_rate", "low", "high",
                        "bias_index", "bias_low", "bias_high"], table)
    return fig
