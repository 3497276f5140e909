"""A policy chosen on both models: studies/make.sh set_aside [DIR] -o STUDIES

DIR holds the studies that studies/set_aside.sh makes: `choice`, of candidates on six documents, and `judged`, of
the chosen one and its rivals on documents set aside before. Writes losses/set_aside_choice.csv,
losses/set_aside.csv and set_aside.png in STUDIES; `pages` fills the tables of studies/set_aside.md.
--choice and --judged print what `kvsim study` is given, a word a line.
"""

import sys

import numpy as np

from . import output, plan, two_models

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
CHOICE, JUDGED = "set_aside_choice", "set_aside"


def candidates(studies):
    """Header and rows: geometric means over documents of a candidate's loss over that of
    `rehearsal:recent`, by model and budget, and over all; the least first."""
    losses = two_models.read(studies, CHOICE)
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
    return two_models.table(studies, model, JUDGED)


def published(studies, *later):
    """`later`: tables of losses on documents that were run after these."""
    return two_models.published(two_models.read(studies, JUDGED, *later), OURS, STREAM)


def draw(studies):
    return two_models.draw(studies, JUDGED, "Documents set aside before the choice",
                           ("snapkv", "layer-defensivekv:code", "kvzip", "kvgrad", *OURS, HINDSIGHT),
                           (STREAM, plan.REREAD))


def main():
    if sys.argv[1:] and sys.argv[1] in OPTIONS:
        print("\n".join(OPTIONS[sys.argv[1]]))
        return
    output.write_page(__doc__, "set_aside", two_models.HEADER,
                      {CHOICE: lambda folder: two_models.rows(folder / "choice"),
                       JUDGED: lambda folder: two_models.rows(folder / "judged")}, draw)


if __name__ == "__main__":
    main()
