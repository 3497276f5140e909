"""Roofline time of one decode step of attention against the context, from the memory model.

The file says the time at its own length; slots grow with the context where the budget is a ratio
and stay where it is a count, and so does the time.
"""

import numpy as np

from ...plain import counted
from .. import style

TITLE = "roofline time of a decode step against the context length"
NEEDS = ("decode_time", "decode_speedup")
LACKING = "no decode_time; --bandwidth and --peak make it"
CONTEXTS = 2.0 ** np.arange(10, 18)
MOST_LINES = 9


def draw(results, options):
    time, speedup = (results.variable(name, "policy", "budget") for name in NEEDS)
    length = float(results.data.attrs["prompt_len"])
    full = CONTEXTS / length * float((time * speedup).max())
    budgets = dict(zip(results.budget_labels(), results.budgets))
    grey = {"color": style.REFERENCE, "linestyle": "-", "marker": "", "linewidth": 1.2}
    lines = [("full cache", full, grey)]
    for policy in results.policies:
        for k, (label, budget) in enumerate(budgets.items()):
            # A count is the whole cache until the context is longer.
            grows = np.minimum(1, CONTEXTS / float(label)) if label.isdigit() else CONTEXTS / length
            own = np.minimum(float(time.sel(policy=policy, budget=budget)) * grows, full)
            if not np.isnan(own).all() and len(lines) <= MOST_LINES:
                lines.append((f"{policy} at {label}", own, {
                    **style.policy_style(results, policy), "linestyle": style.line_style(k)["linestyle"]}))
    fig, axes = style.frame(
        "One decode step of attention by the roofline model",
        f"{results.subtitle}\n{counted(len(results.layers), 'layer')} of the file; no weights, launch or "
        "scoring cost: an upper bound of what compression saves", 1, 2, 2.6,
        [style.key(name, look) for name, _, look in lines], ("context (prompt tokens)", ""))
    for _, own, look in lines:
        axes[0, 0].plot(CONTEXTS, own * 1e6, **look)
        axes[0, 1].plot(CONTEXTS, full / own, **look)
    axes[0, 0].set_ylabel("time (microseconds)")
    axes[0, 1].set_ylabel("speed-up against the full cache")
    for ax in axes[0]:
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        style.log_ticks(ax.yaxis)
        ax.set_xticks(CONTEXTS[::2], [f"{context / 1024:g}k" for context in CONTEXTS[::2]])
    return fig
