"""Loss of the model itself by budget, beside the stream error that foretells it.

From a results file and what the closed loop of its trace wrote (`kvsim closed-loop`). The loss is
the mean KL divergence of the next-token distribution from that with the full cache."""

import numpy as np

from .. import load, measures, style
from .stream_error import named_lines

TITLE = "what the model itself lost by budget, beside the stream error (needs a closed loop)"
LACKING = "no closed loop beside it; kvsim closed-loop runs it"
MEASURE = "stream_error_rms"


def find(results, options):
    """Policies that were run."""
    lost = results.loop_losses
    return [policy for policy in results.policies
            if not load.is_full(policy) and lost.sel(policy=policy).notnull().any()]


def draw(results, options, policies):
    lost = results.loop_losses.sel(policy=policies).dropna("budget", how="all")
    panels = {"model's loss, KL divergence (nats)": ("kl_divergence_mean", lost)}
    said, note = "The model ran with each policy's cache; mean over steps", measures.held_note([results], policies)
    if results.has(MEASURE):
        error = results.variable(MEASURE, "policy", "budget").sel(policy=policies)
        panels["stream error, rms over steps"] = (MEASURE, error.sel(budget=lost.budget))
        said = f"Left: {said[0].lower()}{said[1:]}. Right: what replay foretold"
        note = measures.layers_note([results]) + note
    fig = named_lines(results, policies, "What the model lost", f"{note}\n{said}. Lower is better.", {
        label: (measure, values.where(values > 0)) for label, (measure, values) in panels.items()}, 2.9)
    style.numbers(fig, ["policy", "budget", *panels],
                  [[policy, float(budget), *(float(values.sel(policy=policy, budget=budget))
                                             for _, values in panels.values())]
                   for policy in policies for budget in np.sort(lost.budget)])
    return fig
