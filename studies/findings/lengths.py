"""Generated texts, later tokens, chunks and lengths on two models: studies/make.sh lengths [DIR] -o STUDIES

DIR holds the studies that studies/lengths.sh makes, a folder for each of EXPERIMENTS. Writes losses/lengths.csv and
lengths.png in STUDIES; `pages` fills the tables of studies/lengths.md. --options EXPERIMENT prints what `kvsim study`
is given.
"""

import sys
from dataclasses import dataclass

import numpy as np

from kvsim.plots import style
from . import output, plan, set_aside, two_models

BASE, MODELS, STREAM = two_models.BASE, two_models.MODELS, set_aside.STREAM
BOTH = "repeat:gradient"


@dataclass(frozen=True)
class Experiment:
    """`said` is what the page calls it; `texts` says in awk which documents are read, by number or name; none: generated
    ones."""

    said: str
    policies: tuple
    texts: str = ""
    prompt: int = 704
    later: int = 128
    budgets: tuple = ("0.1", "0.35")
    probe: str = BOTH


FOUR = "NR % 6 == 1 && NR <= 19"   # of the six of why.py
EXPECTED = tuple(f"expected-attention{form},expected_steps={steps}" for form in ("", ":joint") for steps in (512, 128))
READ_TWICE = ("kvzip", "kvzip-plus", "kvgrad", plan.REREAD)
LONG = ("streaming", BASE, "snapkv", *READ_TWICE, *EXPECTED, STREAM)
#: Presets that compress once and drop what they do not keep.
ONCE = (*plan.PRESETS, *plan.VARIANTS, *plan.ONCE, "kvzip", "kvzip-plus", "kvzip:uniform", *plan.FURTHER[:-1], *set_aside.OURS)
EXPERIMENTS = {
    "generated": Experiment("generated", (*set_aside.PUBLISHED, *set_aside.OURS, set_aside.HINDSIGHT), budgets=two_models.BUDGETS),
    "horizon": Experiment("512 later tokens", ("streaming", BASE, "snapkv", "layer-defensivekv:code", "kvzip", "kvgrad", *EXPECTED, STREAM),
                          FOUR, later=512),
    "presets": Experiment("all presets", ONCE, FOUR, probe=plan.PROBES),
    "chunks": Experiment("2304 tokens, read again in chunks of 512", LONG, FOUR, 2304, probe="repeat:512:gradient"),
    "whole": Experiment("2304 tokens, read again in chunks of 2048", LONG, FOUR, 2304),
    "longest": Experiment("4000 tokens", (*set_aside.PUBLISHED, EXPECTED[2], "restkv:code", STREAM, plan.REREAD, set_aside.HINDSIGHT),
                          "/ruby-grammar|erlang-dets|python-tests/", 4000),
}
HEADER = ["experiment", *two_models.HEADER]


def options(name):
    """What `kvsim study` is given."""
    one = EXPERIMENTS[name]
    return ["--prompt-tokens", str(one.prompt), "--steps", str(one.later), "--budget", ",".join(one.budgets), "--reference", BASE,
            "--probe", one.probe, *(word for policy in one.policies for word in ("--policy", policy))]


def rows(folder):
    """A row per experiment, model, text, policy and budget, of texts that both models read."""
    for name in EXPERIMENTS:
        if (folder / name).is_dir():
            yield from ([name, *row] for row in two_models.rows(folder / name))


def read(studies, name):
    """The losses of an experiment."""
    losses = two_models.read(studies, "lengths")
    return losses[losses.experiment == name]


def table(studies, name):
    """Header and rows: losses over H2O's by policy, model and budget, the least in the mean of both first; at the end
    H2O's own, nats, geometric means over texts."""
    losses, budgets = read(studies, name), EXPERIMENTS[name].budgets
    found = two_models.relative(losses)
    columns = [(model, budget) for model in MODELS for budget in budgets]
    nats = np.exp(np.log(losses[losses.policy == BASE].set_index(["model", "budget"]).kl).groupby(level=[0, 1]).mean())
    order = sorted((one for one in losses.policy.unique() if one != BASE),
                   key=lambda one: (one in two_models.HINDSIGHT, sum(np.log(found[model, one, b][0]) for model, b in columns)))
    return (["policy", *(f"{model}, {budget}" for model, budget in columns)],
            [[f"`{one}`" + " (hindsight)" * (one in two_models.HINDSIGHT),
              *(two_models.cell(found[model, one, budget]) for model, budget in columns)] for one in order] +
            [[f"`{BASE}`, nats", *(f"{nats[place]:.3f}" for place in columns)]])


def draw(studies):
    """A panel per experiment and model at the smallest budget, a row per policy: loss over H2O's with its interval."""
    names = [name for name in EXPERIMENTS if len(read(studies, name))]
    fig, axes = style.frame(
        "Where does the order of policies hold?",
        f"Loss over that of {BASE} with the same number of entries (1), a tenth kept. KL divergence of the next-token distribution "
        "from the full cache's, geometric means over texts with 95 % intervals, weights of four bits.",
        len(names), 2, 2.6, (), (f"loss relative to {BASE}", ""), sharex=True)
    for name, pair in zip(names, axes):
        losses = read(studies, name)
        found = two_models.relative(losses)
        listed = [one for one in EXPERIMENTS[name].policies if one != BASE]
        for ax, (model, said) in zip(pair, MODELS.items()):
            ax.axvline(1, color=style.REFERENCE, linewidth=0.8)
            for row, one in enumerate(listed):
                mean, low, high = found[model, one, "0.1"][:3]
                ax.plot([low, high], [row, row], color=style.REFERENCE, linewidth=1)
                ax.plot(mean, row, "o", markersize=4, color=style.COLOURS[int(one.startswith(plan.FOUND))])
            ax.set(xscale="log", title=f"{EXPERIMENTS[name].said}: {said}")
            style.log_ticks(ax.xaxis)
            ax.set_yticks(range(len(listed)), listed if ax is pair[0] else [""] * len(listed))
            ax.invert_yaxis()
    return fig


def main():
    if sys.argv[1:2] == ["--options"]:
        print("\n".join(options(sys.argv[2])))
    elif sys.argv[1:] == ["--experiments"]:
        print("\n".join(f"{name}\t{one.texts}" for name, one in EXPERIMENTS.items()))
    else:
        output.write_page(__doc__, "lengths", HEADER, rows, draw)


if __name__ == "__main__":
    main()
