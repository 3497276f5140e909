"""Keep rate and retained importance of hidden facts: depth across, length of the prompt down, one
panel per policy: the retrieval figures of DefensiveKV and ReST-KV, on attention, not answers.

A needle is a span whose name begins with `needle`. Its depth is the share of the prompt before it;
needles in the same fifth of prompts of nearly the same length share a cell, which shows their mean. Traces with one
needle and traces with several have maps of their own.
"""

import functools

import numpy as np

from ...plain import counted
from .. import load, statistics, style

TITLE = "keep rate and importance of needles, depth by length, one panel per policy"
READS = "several"
MEASURES = (("keep_rate", "kept", "Keep rate of needles"),
            ("span_retained_importance", "importance", "Retained importance of needles"))
FIFTHS = (10, 30, 50, 70, 90)   # percent: the middle of each fifth of the prompt


def pages(several, options):
    found = needles(several)
    policies = load.competitors(load.common_policies(several))
    listed = {}
    for count, (files, places) in found.items():
        for name, stem, title in MEASURES:
            if all(results.has(name) for results in files):
                listed[f"needles{count}-{stem}"] = functools.partial(
                    draw, files, options, places, name, f"{title}, {count} in the prompt,", policies)
    if not listed:
        raise load.NotMeasured("neither keep_rate nor span_retained_importance was measured")
    return listed


def needles(several):
    """{needles per trace: (files, [(number of file, span, depth in %, length)])}."""
    found = {}
    for results in several:
        spans = [span for span in results.spans if span.startswith("needle")]
        if spans and results.has("span_begin"):
            files, places = found.setdefault(len(spans), ([], []))
            places += [(len(files), span, *place(results, span)) for span in spans]
            files.append(results)
    if not found:
        raise load.NotMeasured("no span whose name begins with needle")
    return dict(sorted(found.items()))


def place(results, span):
    """(depth in percent, prompt length) of a span."""
    begin, end = (float(results.variable(name, "span").sel(span=span))
                  for name in ("span_begin", "span_end"))
    length = int(results.data.attrs["prompt_len"])
    return 100 * begin / max(1.0, length - (end - begin)), length


def cells(several, options, found, name, policies):
    """(means over layers and needles [policy, length, depth], needles per cell, lengths, depths,
    mean over the needles of a trace [policy, trace])."""
    tables = []
    for results in several:
        table = results.variable(name, "policy", "budget", "span", "layer")
        at = {"policy": policies, "budget": results.nearest_budget(options.budget)}
        tables.append(table.sel(at).mean("layer", skipna=False))
    lengths = grouped([length for *_, length in found])
    depths = sorted({fifth(depth) for _, _, depth, _ in found})
    sums, counts = (np.zeros((len(policies), len(lengths), len(depths))) for _ in range(2))
    for f, s, depth, length in found:
        row = next(i for i, group in enumerate(lengths) if length in group)
        column = depths.index(fifth(depth))
        sums[:, row, column] += tables[f].sel(span=s)
        counts[:, row, column] += 1
    with np.errstate(invalid="ignore"):
        values = sums / np.where(counts > 0, counts, np.nan)
    traces = np.stack([table.sel(span=[s for g, s, *_ in found if g == f])
                       .mean("span", skipna=False) for f, table in enumerate(tables)], axis=1)
    return (values, counts[0], [round(sum(group) / len(group)) for group in lengths], depths,
            traces)


def fifth(depth):
    return FIFTHS[min(int(depth // 20), 4)]


def grouped(lengths):
    """Lengths that differ by less than a tenth, together: texts end where a sentence does."""
    groups = []
    for length in sorted(set(lengths)):
        if groups and length < 1.1 * groups[-1][0]:
            groups[-1].append(length)
        else:
            groups.append([length])
    return groups


def draw(several, options, found, name, title, policies):
    values, counts, lengths, depths, traces = cells(several, options, found, name, policies)
    mean, (low, high) = statistics.over_traces(traces, "share")
    rows, columns = style.panel_grid(len(policies), 4)
    titles = [style.wrapped(policy, 30) for policy in policies]
    lines = max(text.count("\n") + 1 for text in titles)
    budgets = {results.budget_text(results.nearest_budget(options.budget)) for results in several}
    fig, axes = style.frame(
        f"{title} at budget {', '.join(sorted(budgets))}",
        f"{several[0].model}, {counted(len(several), 'trace')}, {counted(len(found), 'needle')}, "
        f"{counts[counts > 0].min():g} to {counts.max():g} in a cell; mean over layers; darker is "
        "worse; white without number: no needle there\nin brackets: mean over traces and its 95 % "
        "interval (t)", rows, columns,
        max(1.2 / rows, 0.4 + 0.1 * lines + 0.17 * len(lengths)), (),
        ("depth of the needle (% of the prompt)", "prompt length (tokens)"),
        sharex=True, sharey=True)
    for p, (ax, panel, text) in enumerate(zip(axes.flat, values, titles)):
        style.number_map(ax, panel, 1 - panel, 1.0, "{:.2f}".format, missing="")
        ax.set_xticks(range(len(depths)), [f"{depth - 10}–{depth + 10}" for depth in depths])
        ax.set_yticks(range(len(lengths)), lengths)
        ax.set_title(f"{text}\n({mean[p]:.2f} [{low[p]:.2f}, {high[p]:.2f}])", fontsize=6)
    style.hide_unused(axes, len(policies))
    style.numbers(fig, ["policy", "length", "depth", "value", "needles", "low", "high"],
                  [[policy, length, depth, values[p, i, k], int(counts[i, k]), "", ""]
                   for p, policy in enumerate(policies) for i, length in enumerate(lengths)
                   for k, depth in enumerate(depths) if not np.isnan(values[p, i, k])]
                  + [[policy, "all", "all", mean[p], len(found), low[p], high[p]]
                     for p, policy in enumerate(policies)])
    return fig
