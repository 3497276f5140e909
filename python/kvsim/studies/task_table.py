"""Findings of a study's tasks: accuracy with intervals, and whether KL orders policies alike."""

import itertools

import numpy as np
import pandas

from ..plots import statistics
from . import table
from .folder import TABLES

ALL = "all"   # tasks or questions together
LEAST_POLICIES = 3   # below it no order is worth a number


def accuracy(answers: pandas.DataFrame) -> pandas.DataFrame:
    """A row per model, task, question, budget and policy, and those of all together."""
    rows = []
    for keys, own in _groups(answers, "budget", "policy"):
        share = own.right.mean()
        rows.append([*keys, share, *statistics.wilson(share, len(own)), own.kl.mean(), len(own)])
    return table.sorted_by(pandas.DataFrame(rows, columns=list(TABLES["accuracy.csv"])),
                           ["model", "task", "question", "budget", "accuracy"], falling=True)


def agreement(answers: pandas.DataFrame, losses: pandas.DataFrame) -> pandas.DataFrame:
    """For each model, task and budget: do the policies stand in the same order by loss as by
    accuracy?

    `by`: "answers", the KL over the answers of the same instances, or "texts", that over the texts
    of the study (geometric mean). `spearman`: rank correlation of accuracy with less loss.
    `told_apart`: pairs of policies whose accuracy differs, by Student's t over the instances that
    both have (95 %). `alike`: the share of them of which the one with less loss is the more accurate.
    """
    rows = []
    for (model, task, question, budget), own in _groups(answers, "budget"):
        right = own.pivot(index="instance", columns="policy", values="right").dropna().astype(float)
        means = right.mean()
        texts = losses[(losses.model == model) & (losses.budget == budget)]
        loss = {"answers": _logs(own.groupby("policy").kl.mean()),
                "texts": _logs(texts.kl).groupby(texts.policy).mean()}
        for by, logs in loss.items():
            both = [one for one in means.index if one in logs.index]
            if len(both) < LEAST_POLICIES:
                continue
            apart = [(a, b) for a, b in itertools.combinations(both, 2)
                     if statistics.chance(right[a] - right[b]) < 1 - statistics.LEVEL]
            alike = [(means[a] - means[b]) * (logs[b] - logs[a]) > 0 for a, b in apart]
            rows.append([model, task, question, budget, by, len(both), len(right),
                         statistics.spearman(means[both].to_numpy(), -logs[both].to_numpy()),
                         len(apart), np.mean(alike) if alike else np.nan])
    return pandas.DataFrame(rows, columns=["model", "task", "question", "budget", "by", "policies",
                                           "instances", "spearman", "told_apart", "alike"])


def _groups(answers: pandas.DataFrame, *keys: str):
    """Answers by model, task, question and further keys; those of all tasks and questions, too."""
    named = answers.task + " " + answers.question + " " + answers.number.astype(str)
    own = answers.assign(instance=named)
    every = pandas.concat([own, own.assign(question=ALL), own.assign(task=ALL),
                           own.assign(task=ALL, question=ALL)])
    return every.groupby(["model", "task", "question", *keys], sort=False)


def _logs(kl: pandas.Series) -> pandas.Series:
    return np.log(kl.clip(lower=table.LEAST))
