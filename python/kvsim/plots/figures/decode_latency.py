"""Roofline time of one decode step of attention against the context, from the memory model.

The file says the time at its own length; slots grow with the context where the budget is a ratio
and stay where it is a count, and so does the time.
"""

import numpy as np

from ...plain import counted
from .. import load, style

TITLE = "roofline time of a decode step against the context length"
CONTEXTS = 2.0 ** np.arange(10, 18)
MOST_LINES = 9


def pages(results, options):
    if not results.has("decode_time", "decode_speedup"):
        raise load.NotMeasured(f"{results.path}: no decode_time; --bandwidth and --peak make it")
    return [("decode_latency", lambda: draw(results))]


def draw(results):
    time = results.variable("decode_time", "policy", "budget")
    speedup = results.variable("decode_speedup", "policy", "budget")
    length = float(results.data.attrs["prompt_len"])
    full = CONTEXTS / length * float((time * speedup).max())
    budgets = dict(zip(results.budget_labels(), results.budgets))
    lines = [(policy, label) for policy in results.policies for label, budget in budgets.items()
             if time.sel(policy=policy, budget=budget).notnull()][:MOST_LINES]
    grey = {"color": style.REFERENCE, "linestyle": "-", "marker": "", "linewidth": 1.2}
    drawn = [{**style.policy_style(results, policy),
              "linestyle": style.line_style(list(budgets).index(label))["linestyle"]}
             for policy, label in lines]
    fig, axes = style.frame(
        "One decode step of attention by the roofline model",
        f"{results.subtitle}\n{counted(len(results.layers), 'layer')} of the file; no weights, launch or "
        "scoring cost: an upper bound of what compression saves", 1, 2, 2.6,
        [style.key("full cache", grey)] +
        [style.key(f"{policy} at {label}", look) for (policy, label), look in zip(lines, drawn)],
        ("context (prompt tokens)", ""))
    axes[0, 0].plot(CONTEXTS, full * 1e6, **grey)
    axes[0, 1].plot(CONTEXTS, np.ones_like(full), **grey)
    for (policy, label), look in zip(lines, drawn):
        grows = CONTEXTS / length
        if label.isdigit():
            # A count is the whole cache until the context is longer.
            grows = np.minimum(1, CONTEXTS / float(label))
        own = np.minimum(float(time.sel(policy=policy, budget=budgets[label])) * grows, full)
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
