"""A policy chosen on both models: studies/make.sh set_aside [DIR] -o STUDIES

DIR holds the studies that studies/set_aside.sh makes: `choice`, of candidates on six documents, and `judged`, of
the chosen one and its rivals on documents set aside before. Writes losses/set_aside_choice.csv,
losses/set_aside.csv and set_aside.png in STUDIES; `pages` fills the tables of studies/set_aside.md.
--choice and --judged print what `kvsim study` is given, a word a line.
"""

import sys
from pathlib import Path

import numpy as np
import pandas

from kvsim.plots import lines, style
from . import output, plan, runs, two_models

BUDGETS, BASE, MODELS = two_models.BUDGETS, two_models.BASE, two_models.MODELS
STREAM = f"{plan.FOUND}:stream"
CHOSEN = (f"{plan.RECENT},rehearsal_norm=projected,power=1.5,group=root-mean-square,weight=none,"
          "joint_depth=0,joint_stream=1")
#: Changes of `rehearsal:recent`, then of what the first round chose.
CANDIDATES = (
    plan.RECENT,
    *(f"{plan.RECENT},{change}" for change in (
        "recent=0.2", "recent=0.4", "prior_share=1", "power=1", "power=4", "joint_depth=0",
        "rehearsal_steps=512", "rehearsal_steps=32", "group=mean", "queries=window,window=128")),
    f"{CHOSEN},prior_share=0.06", f"{CHOSEN},prior_share=0.06,recent=0.2", CHOSEN,
    *(f"{CHOSEN},{change}" for change in (
        "prior_share=0.5", "prior_share=1", "power=2", "joint_stream=0.5", "recent=0.15",
        "prior_share=0.5,recent=0.15", "group=max", "joint_depth=0.75", "prior_share=0.5,power=2")))
PUBLISHED = ("streaming", BASE, "snapkv", "layer-defensivekv:code", "criticalkv:ada", "kvzip", "kvgrad")
OURS = (plan.RECENT, STREAM, plan.REREAD)
HINDSIGHT = "oracle-stream"
COMMON = ("--prompt-tokens", "704", "--steps", "128", "--budget", ",".join(BUDGETS), "--reference", BASE)
OPTIONS = {
    "--choice": (*COMMON, "--probe", "none", *(
        word for one in (BASE, *CANDIDATES) for word in ("--policy", one))),
    "--judged": (*COMMON, "--probe", "repeat:gradient", *(
        word for one in (*PUBLISHED, *OURS, HINDSIGHT) for word in ("--policy", one)))}
CHOICE, JUDGED = "losses/set_aside_choice.csv", "losses/set_aside.csv"


def read(studies, name):
    return pandas.read_csv(studies / name, dtype={"budget": str})


def candidates(studies):
    """Header and rows: geometric means over documents of a candidate's loss over that of
    `rehearsal:recent`, by model and budget, and over all; the least first."""
    losses = read(studies, CHOICE)
    found = two_models.relative(losses, plan.RECENT)

    def cells(policy):
        return [found[model, policy, budget][0] for model in MODELS for budget in BUDGETS]

    known = [one for one in losses.policy.unique() if one != BASE]
    order = sorted(known, key=lambda one: np.log(cells(one)).sum())
    return (["change", "mean", *(f"{model.split('-')[0]}, {b}" for model in MODELS for b in BUDGETS)],
            [[f"`{one.removeprefix(plan.RECENT).lstrip(',') or plan.RECENT}`",
              two_models.number(np.exp(np.mean(np.log(cells(one))))),
              *map(two_models.number, cells(one))] for one in order])


def judged(studies, model):
    """Header and rows: losses relative to the base's on a model, its own in nats at the end."""
    losses = read(studies, JUDGED)
    found = two_models.relative(losses)
    own = losses[(losses.model == model) & (losses.policy == BASE)]
    nats = [np.exp(np.log(own[own.budget == budget].kl).mean()) for budget in BUDGETS]
    listed = sorted((one for one in (*PUBLISHED, *OURS, HINDSIGHT) if one != BASE),
                    key=lambda one: (one == HINDSIGHT, np.log([found[model, one, b][0] for b in BUDGETS]).sum()))
    return (["policy", *BUDGETS],
            [[f"`{one}`" + (" (hindsight)" if one == HINDSIGHT else ""),
              *(two_models.cell(found[model, one, b]) for b in BUDGETS)] for one in listed]
            + [[f"`{BASE}`, nats", *(f"{one:.3f}" for one in nats)]])


def published(studies):
    """Header and rows: our losses over those of the published policy that loses least on the model at the
    budget, chosen on these documents, so in its favour; with the document where ours is worst."""
    losses = read(studies, JUDGED)
    found = two_models.relative(losses)
    bases = {(model, b): two_models.best(found, model, b, PUBLISHED) for model in MODELS for b in BUDGETS}
    against = {base: two_models.relative(losses, base) for base in set(bases.values())}
    rows = []
    for model in MODELS:
        rows.append([model, "the best published", *(f"`{bases[model, b]}`" for b in BUDGETS)])
        rows += [[model, f"`{one}`", *(two_models.cell(against[bases[model, b]][model, one, b]) for b in BUDGETS)]
                 for one in OURS]
        rows.append([model, f"`{STREAM}`, worst document", *(
            two_models.number(against[bases[model, b]][model, STREAM, b][3]) for b in BUDGETS)])
    for one in OURS:
        mean = np.mean([np.log(against[base][model, one, b][0]) for (model, b), base in bases.items()])
        rows.append(["both, mean", f"`{one}`", two_models.number(np.exp(mean)), *[""] * (len(BUDGETS) - 1)])
    return ["model", "policy", *BUDGETS], rows


def draw(studies):
    """A panel per model: losses relative to the base's by budget."""
    losses = read(studies, JUDGED)
    found = two_models.relative(losses)
    fig, axes = style.frame(
        "Documents set aside before the choice",
        "KL divergence of the next-token distribution from the full cache's, relative to "
        f"{BASE} with the same number of entries (1). Lower is better. Geometric mean over {losses.text.nunique()} "
        f"documents, one per source, prompts of {losses.prompt_tokens.max()} tokens, weights of four bits; bands: 95 % "
        f"intervals of {STREAM} and {plan.REREAD}.\n{HINDSIGHT} knows the future: no competitor.", 1, 2, 3.0, (),
        (style.BUDGET, f"loss relative to {BASE}"), sharey=True)
    for ax, (model, name) in zip(axes.flat, MODELS.items()):
        ax.axhline(1, color=style.REFERENCE, linewidth=0.8)
        lines.over_budgets(ax, [float(one) for one in BUDGETS],
                           ("snapkv", "layer-defensivekv:code", "kvzip", "kvgrad", *OURS, HINDSIGHT),
                           (STREAM, plan.REREAD),
                           lambda policy, budget, model=model: found.get((model, policy, f"{budget:g}")))
        ax.set_title(name)
    return fig


def main():
    if sys.argv[1:] and sys.argv[1] in OPTIONS:
        print("\n".join(OPTIONS[sys.argv[1]]))
        return
    folder = next((Path(one) for one in sys.argv[1:-2]), None)
    if folder is not None:
        runs.write(Path(sys.argv[-1]) / CHOICE, [two_models.HEADER, *two_models.rows(folder / "choice")])
    output.write_page(__doc__, "set_aside", two_models.HEADER,
                      lambda given: two_models.rows(given / "judged"), draw)


if __name__ == "__main__":
    main()
