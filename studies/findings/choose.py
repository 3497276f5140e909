"""A policy chosen by the trace alone: studies/make.sh choose [DIR] -o STUDIES

DIR holds the studies that studies/choose.sh makes: those of set_aside.sh, on fifteen other documents. Writes
losses/choose.csv and choose.png in STUDIES; `pages` fills the tables of studies/choose.md. The rule is that of
`kvsim choose`: the least stream error of its presets. A regret is the loss of a pick over the least loss that any
of the presets has on that document.
"""

import numpy as np
import pandas
import xarray

from kvsim.plots import statistics, style
from kvsim.studies.choice import PRESETS
from kvsim.studies.folder import Folder
from kvsim.studies.table import LEAST
from . import output, set_aside, two_models

BUDGETS, MODELS = two_models.BUDGETS, two_models.MODELS
NAME = "choose"
#: Of the first half of the later tokens, and the loss of the other half.
HALVES = ["stream_error_first", "kl_second"]
HEADER = [*two_models.HEADER, *HALVES]
RULE = "the rule, by the document itself"
ANOTHER, OTHERS, HALF = ("the rule, by one other document", "the rule, by all other documents",
                         "the rule, by the first half, for the second")
FIXED_HALF = "the best on the opened documents, for the second half"
FIXED, RANDOM, BEST = "the best on the opened documents", "one of the nine at random", "the best published, in hindsight"
ALWAYS = ("h2o", "snapkv", "kvgrad", "rehearsal:stream", "rehearsal:reread")
DRAWN = (RULE, ANOTHER, FIXED, BEST, "always rehearsal:stream")


def rows(folder):
    """A row per model, document, policy and budget, of documents that both models have read."""
    studies = {model: Folder(folder / model) for model in MODELS}
    found = pandas.concat([one.losses().assign(model=model) for model, one in studies.items()])
    both = found.groupby("text").model.nunique() == len(MODELS)
    found = found[found.text.map(both)].sort_values(["model", "text"], kind="stable")
    halves = {}
    for (model, text), _ in found.groupby(["model", "text"]):
        for part in studies[model].parts(text):
            halves |= {(model, text, *key): pair for key, pair in of_halves(part)}
    keys = found[["model", "text", "policy", "budget"]].itertuples(index=False, name=None)
    found[HALVES] = [halves[key] for key in keys]
    yield from found[HEADER].map(lambda one: f"{one:.5g}" if isinstance(one, float) else one).values.tolist()


def of_halves(part):
    """((policy, budget), numbers of HALVES) of a part of a study."""
    with xarray.open_dataset(part.loop, engine="h5netcdf", decode_times=False) as loop, \
            xarray.open_dataset(part.results, engine="h5netcdf", decode_times=False) as results:
        half = loop.sizes["step"] // 2
        errors = results.stream_error.sel(policy=loop.policy.values).values[..., :half]
        first = np.sqrt((errors**2).mean(-1))
        second = loop.kl_divergence.values[..., half:].mean(-1)
        for p, policy in enumerate(loop.policy.values):
            for b, budget in enumerate(loop.budget_label.values):
                yield (str(policy), str(budget)), (float(first[p, b]), float(second[p, b]))


def logs(losses, model, budget, column="kl", policies=PRESETS):
    """[document, policy]: logarithms of a column."""
    own = losses[(losses.model == model) & (losses.budget == budget)]
    wide = own.pivot(index="text", columns="policy", values=column)[list(policies)]
    return np.log(wide.clip(lower=LEAST))


def regrets(losses, opened, model, budget):
    """{way: [document]: logarithm of the loss of what it chooses over the least on that document}."""
    lost, errors = (logs(losses, model, budget, column) for column in ("kl", "stream_error"))
    over = lost.sub(lost.min(axis=1), axis=0)
    chosen = errors.idxmin(axis=1)

    def of(picks):
        return np.array([over.loc[text, pick] for text, pick in picks.items()])

    others = pandas.Series({text: errors.drop(text).mean().idxmin() for text in errors.index})
    another = np.array([over.loc[text, list(chosen.drop(text))].mean() for text in over.index])
    fixed = logs(opened, model, budget).mean().idxmin()
    published = logs(losses, model, budget, policies=set_aside.PUBLISHED).min(axis=1)
    found = {RULE: of(chosen), ANOTHER: another, OTHERS: of(others)}
    if HALVES[0] in losses:
        later = logs(losses, model, budget, HALVES[1])
        first = logs(losses, model, budget, HALVES[0]).idxmin(axis=1)
        after = later.sub(later.min(axis=1), axis=0)
        found |= {HALF: np.array([after.loc[text, pick] for text, pick in first.items()]),
                  FIXED_HALF: after[fixed].to_numpy()}
    return found | {FIXED: over[fixed].to_numpy(), **{f"always {one}": over[one].to_numpy() for one in ALWAYS},
                    RANDOM: over.mean(axis=1).to_numpy(), BEST: (published - lost.min(axis=1)).to_numpy()}


def tables(studies, judged):
    """Losses that are looked at, and those that the best policy was fixed on before."""
    opened = two_models.read(studies, set_aside.JUDGED)
    return (two_models.read(studies, NAME) if judged else opened), opened


def estimate(values):
    """Geometric mean with its 95 % interval over documents, and the worst."""
    mean, (low, high) = statistics.over_traces(values)
    return tuple(np.exp([mean, low, high, values.max()]))


def table(studies, model, judged=True):
    """Header and rows: what each way to choose loses over the best of the nine on each document."""
    losses, opened = tables(studies, judged)
    found = {budget: regrets(losses, opened, model, budget) for budget in BUDGETS}
    shown = []
    for way in found[BUDGETS[0]]:
        cells = {budget: estimate(own[way]) for budget, own in found.items()}
        mean = np.exp(np.mean([np.log(one[0]) for one in cells.values()]))
        shown.append([way, *(two_models.cell(one) for one in cells.values()), f"{mean:.2f}",
                      two_models.number(max(one[3] for one in cells.values()))])
    return ["a choice", *BUDGETS, "mean", "worst"], shown


def against(studies):
    """Header and rows: the rule's pick over the best published policy, of each document and of the model in the
    mean, both in hindsight, and over the policy that was fixed before."""
    losses, opened = tables(studies, True)
    shown = []
    for model in MODELS:
        each, mean, before = [], [], []
        for budget in BUDGETS:
            lost = logs(losses, model, budget)
            pick = logs(losses, model, budget, "stream_error").idxmin(axis=1)
            own = np.array([lost.loc[text, one] for text, one in pick.items()])
            published = lost[list(set_aside.PUBLISHED)]
            each.append(two_models.cell(estimate(own - published.min(axis=1).to_numpy())))
            for cells, one in ((mean, published.mean().idxmin()), (before, logs(opened, model, budget).mean().idxmin())):
                cells.append(f"{two_models.cell(estimate(own - lost[one].to_numpy()))} `{one}`")
        shown += [[model, "published, of each document", *each], [model, "published, of all documents", *mean],
                  [model, "fixed on the opened documents", *before]]
    return ["model", "over the best", *BUDGETS], shown


def picked(studies):
    """Header and rows: on how many documents the rule picks a policy, and on how many it loses least."""
    losses, _ = tables(studies, True)
    shown = []
    for model in MODELS:
        counts = [(logs(losses, model, budget, "stream_error").idxmin(axis=1).value_counts(),
                   logs(losses, model, budget).idxmin(axis=1).value_counts()) for budget in BUDGETS]
        shown += [[model, f"`{one}`", *(f"{pick.get(one, 0)} ({least.get(one, 0)})" for pick, least in counts)]
                  for one in PRESETS]
    return ["model", "policy", *BUDGETS], shown


def agreement(studies):
    """Header and rows: Spearman's correlation of stream error and loss over the nine, mean over documents with its
    interval."""
    losses, _ = tables(studies, True)

    def said(model, budget):
        errors, lost = (logs(losses, model, budget, column) for column in ("stream_error", "kl"))
        values = np.array([statistics.spearman(errors.loc[text], lost.loc[text]) for text in lost.index])
        mean, (low, high) = statistics.over_traces(values)
        return f"{mean:.2f} [{low:.2f}, {high:.2f}]"

    return ["model", *BUDGETS], [[model, *(said(model, budget) for budget in BUDGETS)] for model in MODELS]


def sentence(studies):
    """What `kvsim choose` says of itself, in two lines: regrets over all budgets, on the text that chose, on another,
    and of policies fixed before."""
    losses, opened = tables(studies, True)

    def said(way):
        numbers = {model: estimate(np.mean([regrets(losses, opened, model, budget)[way] for budget in BUDGETS], axis=0))
                   for model in MODELS}
        return ", ".join(f"{one:.2f} [{low:.2f}, {high:.2f}] ({model})" for model, (one, low, high, _) in numbers.items())

    return (f"measured on {losses.text.nunique()} documents ({losses.prompt_tokens.max()} + {losses.later_tokens.max()} tokens, "
            f"four-bit weights, budgets {BUDGETS[0]} to {BUDGETS[-1]}; studies/choose.md), over the least loss of the nine on each:",
            f"on the text that chose {said(RULE)}; on another text {said(ANOTHER)}; a policy fixed before {said(FIXED)}")


def draw(studies):
    """A panel per model: regrets of ways to choose by budget."""
    losses, opened = tables(studies, True)
    fig, axes = style.frame(
        "A policy chosen by the trace alone",
        f"Loss of what is chosen, over the least of the nine presets on the same document (1). Lower is better. Geometric mean over "
        f"{losses.text.nunique()} documents that no choice had seen, prompts of {losses.prompt_tokens.max()} tokens, weights of four "
        "bits; bands: 95 % intervals.", 1, 2, 3.0, (), (style.BUDGET, "loss over the least"), sharey=True)
    for ax, (model, name) in zip(axes.flat, MODELS.items()):
        found = {budget: {way: estimate(own) for way, own in regrets(losses, opened, model, budget).items()}
                 for budget in BUDGETS}
        ax.axhline(1, color=style.REFERENCE, linewidth=0.8)
        style.over_budgets(ax, [float(one) for one in BUDGETS], DRAWN, DRAWN[:1],
                           lambda way, budget, found=found: found[f"{budget:g}"][way])
        style.log_ticks(ax.yaxis, every=(1, 1.5, 2, 3, 5))
        ax.set_title(name)
    return fig


def main():
    output.write_page(__doc__, NAME, HEADER, rows, draw)


if __name__ == "__main__":
    main()
