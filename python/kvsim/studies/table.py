"""Findings of a study: losses relative to one policy, over texts, and accuracy of tasks, with intervals;
whether KL orders policies as tasks do."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas

from .. import ranking
from ..errors import UsageError
from ..plots import statistics
from .folder import TABLES

LEAST = 1e-9   # nats: what counts as no loss in a ratio
SAME_BYTES = 0.02   # shares of bytes that differ by less are one
LEAST_TEXTS = 4   # below it an interval over texts says nothing: it is NaN
REFERENCES = ("kvzip", "snapkv")   # the first of them that a study has
ALL = "all"   # tasks or questions together
LEAST_POLICIES = 3   # below it no order is worth a number


def reference_of(losses: pandas.DataFrame, wanted: str | None = None) -> str:
    """The policy that others are compared with."""
    policies = list(dict.fromkeys(losses.policy))
    for one in ([wanted] if wanted else REFERENCES):
        if one in policies:
            return one
    if wanted:
        raise UsageError(f"--reference: found {wanted}, expected one of {', '.join(policies)}")
    return policies[0]


def relative(losses: pandas.DataFrame, reference: str, column: str = "kl") -> pandas.DataFrame:
    """A row per model, text, policy and budget: log of the loss over the reference's."""
    keys = ["model", "text", "budget"]
    base = losses[losses.policy == reference].set_index(keys)[column].clip(lower=LEAST)
    own = losses.join(base.rename("base"), on=keys)
    own = own[own.base.notna()]
    return own.assign(log=np.log(own[column].clip(lower=LEAST) / own.base))


def leaderboard(losses: pandas.DataFrame, reference: str) -> pandas.DataFrame:
    """A row per model, budget and policy, best first: geometric mean over texts of the loss relative
    to the reference with its 95 % interval (Student's t on logarithms; from LEAST_TEXTS on), the
    worst text, the loss in nats (geometric mean), the share of bytes held, what that is over what the
    budget gives (`held`), and how many texts."""
    rows = []
    for (model, budget, policy), own in relative(losses, reference).groupby(["model", "budget", "policy"], sort=False):
        mean, (low, high) = statistics.over_traces(own.log.to_numpy())
        if len(own) < LEAST_TEXTS:
            low = high = np.nan
        worst = own.loc[own.log.idxmax()]
        rows.append({"model": model, "budget": budget, "policy": policy,
                     "relative": np.exp(mean), "low": np.exp(low), "high": np.exp(high),
                     "worst": np.exp(worst.log), "worst_text": worst.text,
                     "kl": np.exp(np.log(own.kl.clip(lower=LEAST)).mean()),
                     "top1": own.top1.mean(), "bytes": own.bytes.mean(),
                     "held": (own.bytes / share_of(own, budget)).mean(), "texts": len(own)})
    return sorted_by(pandas.DataFrame(rows), ["model", "budget", "relative"])


def sorted_by(table: pandas.DataFrame, keys: list[str], falling: bool = False) -> pandas.DataFrame:
    """The rows by these columns, budgets by their sizes; the last of them falls, where it is said."""
    return table.sort_values(
        keys, ascending=[True] * (len(keys) - 1) + [not falling], kind="stable",
        key=lambda one: one.map(budget_key) if one.name == "budget" else one).reset_index(drop=True)


def share_of(losses: pandas.DataFrame, budget: str) -> pandas.Series:
    """The share of the full cache's bytes that a budget gives on each text: whole entries."""
    if "prompt_tokens" not in losses:   # of `at_bytes`: the budget is a share of bytes
        return pandas.Series(budget_key(budget), losses.index)
    n = losses.prompt_tokens
    if str(budget).isdigit():
        return np.minimum(int(budget), n) / n
    return np.maximum(1, np.floor(budget_key(budget) * n + 1e-9)) / n


def off_budget(held: float) -> str:
    """">" for what holds over a twentieth more than the budget gives, "<" for less, else nothing."""
    return "" if ranking.alike(held) else ">" if held > 1 else "<"


def is_hindsight(policy: str) -> bool:
    """Oracles know the future: a floor, no competitor."""
    return policy.startswith("oracle")


def competing(board: pandas.DataFrame) -> pandas.DataFrame:
    """The rows that are compared: of policies that hold what the budget gives, without hindsight."""
    return board[(board.held.map(off_budget) == "") & ~board.policy.map(is_hindsight)]


def by_loss(board: pandas.DataFrame) -> pandas.Series:
    """Of each policy the mean over budgets of the loss's logarithm."""
    return np.log(board.relative).groupby(board.policy, sort=False).mean()


def least_first(board: pandas.DataFrame) -> list[str]:
    """Policies by loss; those that are compared nowhere come behind the others, and hindsight last."""
    order, there = by_loss(board), set(competing(board).policy)
    return sorted(order.index, key=lambda one: (is_hindsight(one), one not in there, order[one]))


def best_first(rows: pandas.DataFrame, by: str) -> list[str]:
    """Policies by what they get right, hindsight last."""
    means = rows.groupby("policy", sort=False)[by].mean()
    return sorted(means.index, key=lambda one: (is_hindsight(one), -means[one]))


def budgets_of(rows: pandas.DataFrame) -> list[str]:
    """The budgets of a table by their sizes."""
    return sorted(dict.fromkeys(rows.budget), key=budget_key)


def grid(rows: pandas.DataFrame, order: Iterable[str], cell: Callable[[Any], Any], absent: Any = "–") -> Iterator[list]:
    """Policies in their order with what stands at each of `budgets_of`: `cell` of a row."""
    cells = {(one.policy, one.budget): cell(one) for one in rows.itertuples()}
    budgets = budgets_of(rows)
    return ([policy, *(cells.get((policy, one), absent) for one in budgets)] for policy in order)


def number(value: float) -> str:
    """A loss, or a ratio of two, for people."""
    if not math.isfinite(value):
        return "–"
    if value >= 100 or value == 0:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def interval(row: Any, shown: Callable[[float], str] = number) -> str:
    """The interval of a row behind its value; nothing where it has none."""
    return f" [{shown(row.low)}, {shown(row.high)}]" if math.isfinite(row.low) else ""


def held(losses: pandas.DataFrame) -> str:
    """The column that says what policies hold: `bytes` of the prompt, or `peak` where some policy also
    evicts later tokens."""
    total = losses.prompt_tokens + losses.later_tokens
    if_all_stay = (losses.bytes * losses.prompt_tokens + losses.later_tokens) / total
    return "peak" if (losses.peak < if_all_stay - SAME_BYTES).any() else "bytes"


def at_bytes(losses: pandas.DataFrame, reference: str) -> pandas.DataFrame:
    """The losses where every policy holds the bytes (`held`) that the reference holds on the same text at
    each budget (`ranking.at_shares`).

    `budget` is the mean share of bytes then. A row as of losses.csv with `kl`, `top1` and `bytes`."""
    rows, column = [], held(losses)
    for model, every in losses.assign(bytes=losses[column]).groupby("model", sort=False):
        shares = every[every.policy == reference].pivot(index="text", columns="budget", values="bytes")
        labels = {f"{share:.3g}": budget for budget, share in shares.mean().items()}
        for (text, category, policy), own in every.groupby(["text", "category", "policy"], sort=False):
            for label, budget in labels.items():
                rows.append({"model": model, "text": text, "category": category, "policy": policy,
                             "budget": label, "bytes": shares[budget].get(text, np.nan),
                             "losses": list(zip(own.bytes, own.kl.clip(lower=LEAST))),
                             "agreements": list(zip(own.bytes, own.top1))})
    names = ["model", "text", "category", "policy", "budget", "bytes"]
    found = pandas.DataFrame(rows, columns=[*names, "losses", "agreements"])
    found = found[found.bytes.notna()]
    found["kl"] = ranking.at_shares(found.losses, found.bytes, "log")
    found["top1"] = ranking.at_shares(found.agreements, found.bytes, "share")
    return found[found.kl.notna()][[*names, "kl", "top1"]].reset_index(drop=True)


def by_category(losses: pandas.DataFrame, reference: str) -> pandas.DataFrame:
    """The leaderboard of every category of texts."""
    boards = [leaderboard(own, reference).assign(category=category) for category, own in losses.groupby("category")]
    found = pandas.concat(boards, ignore_index=True)
    return found[["category", *(one for one in found if one != "category")]]


def budget_key(label: str) -> float:
    """Budgets in the order of their sizes: ratios, percentages and counts as they are typed."""
    text = str(label)
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


# ---- tasks ----

def accuracy(answers: pandas.DataFrame) -> pandas.DataFrame:
    """A row per model, task, question, budget and policy, and those of all together."""
    rows = []
    for keys, own in _groups(answers, "budget", "policy"):
        share = own.right.mean()
        rows.append([*keys, share, *statistics.wilson(share, len(own)), own.kl.mean(), len(own)])
    return sorted_by(pandas.DataFrame(rows, columns=list(TABLES["accuracy.csv"])),
                           ["model", "task", "question", "budget", "accuracy"], falling=True)


def agreement(answers: pandas.DataFrame, losses: pandas.DataFrame) -> pandas.DataFrame:
    """For each model, task and budget: do the policies stand in the same order by loss as by
    accuracy?

    `by`: "answers", the KL over the answers of the same instances, or "texts", that over the texts
    of the study (geometric mean). `spearman`: rank correlation of accuracy with less loss.
    `told_apart`: pairs of policies whose accuracy differs, by Student's t over the instances that
    both have (95 %). `alike`: the share of them of which the one with less loss is the more accurate."""
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


def with_instances(answers: pandas.DataFrame) -> pandas.DataFrame:
    return answers.assign(instance=answers.task + " " + answers.question + " " + answers.number.astype(str))


def _groups(answers: pandas.DataFrame, *keys: str):
    """Answers by model, task, question and further keys; those of all tasks and questions, too."""
    own = with_instances(answers)
    every = pandas.concat([own, own.assign(question=ALL), own.assign(task=ALL), own.assign(task=ALL, question=ALL)])
    return every.groupby(["model", "task", "question", *keys], sort=False)


def _logs(kl: pandas.Series) -> pandas.Series:
    return np.log(kl.clip(lower=LEAST))
