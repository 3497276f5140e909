"""Methods that read the prompt twice: studies/make.sh reread DIR|fresh.csv -o FIGS

DIR holds the runs of `studies/losses.sh DIR fresh`. Writes fresh.csv of them and draws the figure of studies/reread.md; losses are relative to those of KVzip.
"""

import functools

import numpy as np

from kvsim.plots import statistics, style
from . import losses, output, plan, runs

BUDGETS = plan.FEW_BUDGETS
HINDSIGHT = ("oracle-stream", "oracle-mean")
FEW = ("oracle-stream", plan.REREAD, plan.RECENT, plan.RIVAL, plan.GRADIENT, "kvzip-plus",
       "kvcompose:unstructured", "expected-attention:joint", "attention-matching", "layer-defensivekv:code", "snapkv")
MANY = (*HINDSIGHT, plan.REREAD, f"{plan.RECENT},join=power-mean", f"{plan.RECENT},join=max",
        f"{plan.RECENT},queries=probe", plan.RECENT, plan.RIVAL, "kvzip-plus", plan.GRADIENT,
        "kvcompose:unstructured", "kvcompose", "kvzip,allocate=ada,ada_floor=0", "kvzip:uniform",
        "laq", "laq:plus", "speckv", "expected-attention:joint", "attention-matching:fitted",
        "attention-matching", "lava", "compactor", "caote", "expected-attention", "triattention",
        "layer-defensivekv:code", "snapkv")
DRAWN = ("snapkv", "layer-defensivekv:code", "expected-attention:joint", plan.RIVAL, plan.GRADIENT, plan.RECENT,
         plan.REREAD, HINDSIGHT[0])
BANDS = (plan.RECENT, plan.REREAD)
FEW_TEXTS = 5


def study_of(source):
    return runs.Study(source, texts=plan.FRESH)


def relative(study, policy, budget, rival=plan.RIVAL):
    """Geometric mean of the loss relative to a rival's and its interval, over documents: a document with
    its question known and unknown counts once. Then the largest of a text, the number of texts, and
    the smallest of a text. None where it has run on fewer than two."""
    texts = study.texts((policy, rival), (budget,), plan.FRESH)
    if len(texts) < 2:
        return None
    logs = study.relative(policy, budget, texts, rival)
    documents = {}
    for text, log in zip(texts, logs):
        documents.setdefault(text.document, []).append(log)
    mean, (low, high) = statistics.over_traces([np.mean(of) for of in documents.values()])
    return *np.exp([mean, low, high, logs.max()]), len(texts), np.exp(logs.min())


def row(study, policy, cell):
    """Losses by budget; a policy that has not run on all texts says on how many it has. Of a few
    texts the range stands there: an interval would say nothing."""
    found = [relative(study, policy, budget) for budget in BUDGETS]
    note = " (hindsight)" if policy in HINDSIGHT else ""
    ran = {one[4] for one in found if one is not None}
    if ran and min(ran) < len(study.texts((plan.RIVAL,), BUDGETS, plan.FRESH)):
        note += f" ({min(ran)} texts)"
        cell = spread if min(ran) < FEW_TEXTS else cell
    return [f"`{policy}`{note}", *("-" if one is None else cell(one) for one in found)]


def number(value):
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def spread(one):
    return "{} ({} to {})".format(*map(number, (one[0], one[5], one[3])))


def interval(one):
    return "{} [{}, {}]".format(*map(number, one[:3]))


def table(study, policies, cell=interval):
    """Header and rows; KVzip's own losses in nats at the end."""
    texts = study.texts((plan.RIVAL,), BUDGETS, plan.FRESH)
    nats = [np.exp(np.mean([np.log(study.value("kl", text, plan.RIVAL, budget))
                            for text in texts])) for budget in BUDGETS]   # of texts
    return (["policy", *(f"{budget:g}" for budget in BUDGETS)],
            [row(study, policy, cell) for policy in policies if policy != plan.RIVAL]
            + [[f"`{plan.RIVAL}`, nats", *map(losses.number, nats)]])


def worst(study):
    """The same of the text on which a policy is worst."""
    return table(study, (plan.REREAD, f"{plan.RECENT},join=power-mean", plan.RECENT,
                         "layer-defensivekv:code"), lambda one: number(one[3]))


def against_gradient(study):
    """Header and rows: losses relative to KVgrad's, and of the worst text."""
    found = {policy: [relative(study, policy, budget, plan.GRADIENT) for budget in BUDGETS]
             for policy in (plan.REREAD, plan.RIVAL, plan.RECENT)}
    return (["policy", *(f"{budget:g}" for budget in BUDGETS)],
            [[f"`{policy}`{ending}", *("-" if one is None else cell(one) for one in every)]
             for policy, every in found.items()
             for ending, cell in (("", interval), (", worst text", lambda one: number(one[3])))])


def by_text(study):
    """Header and rows: the two found policies on every text, by budget, and KVzip in nats."""
    def cells(text, policy):
        ratios = [study.value("kl", text, policy, budget) /
                  study.value("kl", text, plan.RIVAL, budget) for budget in BUDGETS]
        return ", ".join(map(number, ratios))

    rows = [[f"{text.kind} {text.seed}", cells(text, plan.REREAD), cells(text, plan.RECENT),
             ", ".join(number(study.value("kl", text, plan.RIVAL, budget)) for budget in BUDGETS)]
            for text in study.texts((plan.RIVAL,), BUDGETS, plan.FRESH)]
    return ["text, seed", f"`{plan.REREAD}`", f"`{plan.RECENT}`", "KVzip, nats"], rows


def draw(study):
    """A line per policy over budgets; KVzip is 1."""
    texts = study.texts((plan.RIVAL,), BUDGETS, plan.FRESH)
    fig, axes = style.frame(
        "What a second reading saves", "KL divergence of the next-token distribution from the full "
        f"cache's, relative to {plan.RIVAL} with the same number of entries. Lower is better. "
        f"Geometric mean over {len({text.document for text in texts})} documents set aside ({len(texts)} texts); bands: "
        f"95 % intervals of {' and '.join(BANDS)}. {plan.MODEL}.\n{HINDSIGHT[0]} knows the future: no competitor.", 1, 1, 3.2, (),
        ("budget (fraction of the prompt kept)", f"loss relative to {plan.RIVAL}"))
    style.over_budgets(axes.flat[0], BUDGETS, DRAWN, BANDS, functools.partial(relative, study))
    return fig


def main():
    options = output.parser(__doc__, "reread", "DIR|fresh.csv", "FIGS").parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    study = study_of(options.source)
    if options.source.is_dir():
        runs.write(options.out / "fresh.csv", study.rows())
    output.save(options.out, "reread", lambda: draw(study))


if __name__ == "__main__":
    main()
