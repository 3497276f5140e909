"""What a whitelist, fair eviction or debiasing gains over the policy that it constrains
(Pitfalls, Table 1): half the sum of what the losses of two spans lose.

From one results file, or two per text: that of the request that needs the directive, and that of
the request to leak it. See plots/losses.py.
"""

import functools

import numpy as np

from .. import load, losses, statistics, style

TITLE = "gain of whitelist, fair and debiased eviction over the policy itself"
READS = "several"
PAGE = 12


def pages(several, options):
    lost = losses.of(several)
    bases = {base: [one for one in found if one in lost.policies]
             for base, found in losses.variants(several[0]).items() if base in lost.policies}
    bases = {base: found for base, found in bases.items() if found}
    if not bases:
        raise load.NotMeasured(f"{several[0].path}: no policy with and without a constraint")
    groups = [list(bases)[first:first + PAGE] for first in range(0, len(bases), PAGE)]
    return style.pages("fairness", groups, functools.partial(draw, several, lost, bases))


def gains(lost, base, variant):
    """[text, budget]: half of what both losses fall by; NaN at budgets that keep everything."""
    gain = 0.5 * (lost.points(base) - lost.points(variant)).sum(axis=2)
    return np.where(lost.budgets < 1, gain, np.nan)


def summary(gain):
    """(mean, deviation over budgets of the mean over texts, 95 % interval over texts)."""
    mean, (low, high) = statistics.over_traces(np.nanmean(gain, axis=1))
    return mean, np.nanstd(gain.mean(axis=0)), low, high


def draw(several, lost, bases, group, note):
    changes = list(dict.fromkeys(losses.change(one, base) for base in group
                                 for one in bases[base]))
    looks = {text: style.line_style(i) for i, text in enumerate(changes)}
    rows, columns = style.panel_grid(len(group), 4 if len(group) > 3 else 3)
    most = max(len(bases[base]) for base in group)
    texts = len(lost.texts) > 1
    fig, axes = style.frame(
        f"Gain over the unconstrained policy{note}",
        f"{several[0].model}; {lost.described}\ngain: mean fall of {' and '.join(lost.labels)}; "
        "numbers: mean ± standard deviation over budgets below 1"
        + (", [95 % bootstrap interval over texts]" if texts else ""),
        rows, columns, 1.55 + 0.1 * most, [style.key(text, look) for text, look in looks.items()],
        ("compression ratio (1 − budget)", "gain (fraction of importance)"),
        sharex=True, sharey=True)
    order = np.argsort(lost.budgets, kind="stable")
    ratio, table = 1 - lost.budgets[order], []
    for ax, base in zip(axes.flat, group):
        title = [style.wrapped(base, 36)]
        for variant in bases[base]:
            gain = gains(lost, base, variant)[:, order]
            text = losses.change(variant, base)
            line, band = statistics.over_traces(gain.T)
            ax.plot(ratio, line, **looks[text])
            style.band(ax, ratio, band, looks[text], texts)
            mean, spread, low, high = summary(gain)
            title.append(f"{text}: {mean:+.3f} ± {spread:.3f}"
                         + (f" [{low:+.3f}, {high:+.3f}]" if texts else ""))
            table.append([base, text, mean, spread, low, high, *line])
        ax.axhline(0, color="black", linewidth=0.7, linestyle=":")
        ax.set_title("\n".join(title), fontsize=5.5)
    style.hide_unused(axes, len(group))
    style.numbers(fig, ["policy", "variant", "mean", "deviation", "low", "high",
                        *(f"budget {budget:g}" for budget in lost.budgets[order])], table)
    return fig
