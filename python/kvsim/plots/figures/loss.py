"""Loss of the model itself by budget, beside the stream error that foretells it.

From a results file and what the closed loop of its trace wrote (`kvsim closed-loop`). The loss is
the mean KL divergence of the next-token distribution from that with the full cache.
"""

import functools

import numpy as np

from .. import load, measures, style

TITLE = "what the model itself lost by budget, beside the stream error (needs a closed loop)"
MEASURE = "stream_error_rms"


def pages(results, options):
    lost = results.loop_losses
    run = [policy for policy in results.policies
           if not load.is_full(policy) and lost.sel(policy=policy).notnull().any()]
    if not run:
        raise load.NotMeasured(f"{results.path}: no closed loop beside it; kvsim closed-loop runs it")
    return style.pages("loss", [run], functools.partial(draw, results))


def draw(results, policies, note):
    lost = results.loop_losses.sel(policy=policies).dropna("budget", how="all")
    tables = [("model's loss, KL divergence (nats)", "kl_divergence_mean", lost)]
    said = "The model ran with each policy's cache; mean over steps"
    about = results.subtitle
    if results.has("stream_error_rms"):
        error = results.variable("stream_error_rms", "policy", "budget").sel(policy=policies)
        tables.append(("stream error, rms over steps", MEASURE, error.sel(budget=lost.budget)))
        said = f"Left: {said[0].lower()}{said[1:]}. Right: what replay foretold"
        about += measures.layers_note([results], ["stream_error"])
    fig, axes = style.frame(f"What the model lost{note}", f"{about}\n{said}. Lower is better.", 1,
                            len(tables), 2.9, (), (style.budget_label(results), ""))
    for ax, (label, measure, values) in zip(axes.flat, tables):
        values = values.where(values > 0)
        style.budget_lines(ax, results, policies, values)
        style.error_axis(ax, values, measure=measure)
        ax.set_ylabel(label)
        style.name_lines(ax, results, policies, values.sortby("budget"))
    style.numbers(fig, ["policy", "budget", *(label for label, *_ in tables)],
                  [[policy, float(budget), *(float(values.sel(policy=policy, budget=budget))
                                             for *_, values in tables)]
                   for policy in policies for budget in np.sort(lost.budget)])
    return fig
