"""Findings of a study, as text and as tables."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import optuna
import pandas
from optuna.trial import FrozenTrial, TrialState

from .. import ranking
from ..plain import counted
from .config import HELD, Objective
from .evaluate import Measured, by_budget
from .study import Study, look_key

LEAST = 16   # candidates with a key before its importance is told


def counts(study: Study) -> dict[str, int]:
    """How many candidates were tried, and what became of them."""
    trials = [one for one in study.trials() if one.state != TrialState.WAITING]
    new = [one for one in trials if "same_as" not in one.user_attrs]
    apart = {what: sum(what in one.user_attrs for one in new) for what in ("infeasible", "unranked")}
    state = {name: sum(one.state == TrialState[name] for one in new)
             for name in ("COMPLETE", "PRUNED", "RUNNING")}
    return {"tried": len(trials), "measured": state["COMPLETE"], "again": len(trials) - len(new),
            "given up": state["PRUNED"] - sum(apart.values()), **apart,
            "running": state["RUNNING"]}


def counts_text(study: Study) -> str:
    found = counts(study)
    parts = [f"{found['measured']} measured"]
    parts += [f"{found[name]} {text}" for name, text in
              (("again", "the same record as an earlier one"), ("given up", "given up on the way"),
               ("infeasible", "infeasible"), ("unranked", "not ranked"), ("running", "at work")) if found[name]]
    return f"{found['tried']} candidates tried: {', '.join(parts)}"


def importances(study: Study, objective: int = 0) -> dict[str, float]:
    """PED-ANOVA of every key over the candidates that have it, times their share of all; as shares
    of the sum, the largest first."""
    found = {}
    sign = 1 if study.config.objectives[objective].direction == "minimize" else -1
    complete = [one for one in study.trials() if one.state == TrialState.COMPLETE]
    for key in sorted({key for one in complete for key in one.params}):
        having = {repr(one.params[key]) for one in complete if key in one.params}
        count = sum(key in one.params for one in complete)
        if len(having) < 2 or count < LEAST:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")   # that a given target is taken to be minimised
            told = optuna.importance.get_param_importances(
                study.optuna, evaluator=optuna.importance.PedAnovaImportanceEvaluator(),
                params=[key], normalize=False, target=lambda one: sign * one.values[objective])
        found[key] = float(told[key]) * count / len(complete)
    whole = sum(found.values())
    return {key: one / whole for key, one in sorted(found.items(), key=lambda item: -item[1])
            if whole > 0}


def relative(objective: Objective, budgets: Sequence[str], measured: Sequence[Measured],
             reference: Sequence[Mapping[str, Measured]]) -> np.ndarray:
    """[texts, budgets]: ln of value over reference, or the value where there is none."""
    rows = []
    for one, other in zip(measured, reference):
        values = by_budget(objective, one, other.get(objective.reference, {}))
        rows.append([values[budgets.index(b)] for b in objective.budgets or budgets])
    return np.array(rows)


def shown(objective: Objective, values: np.ndarray) -> np.ndarray:
    """Means of logarithms as the ratios that they stand for."""
    return np.exp(values) if objective.reference else values


def value_text(objective: Objective, value: float) -> str:
    if objective.reference:
        return f"{math.exp(value):.3f} of {objective.reference}"
    return f"{value:.4g}"


def best_text(study: Study) -> str:
    """One line: the best so far."""
    found = study.best()
    if not found:
        return "none measured yet"
    if len(study.config.objectives) > 1:
        return f"{len(found)} that no other beats in every objective"
    return (f"best {value_text(study.config.objectives[0], found[0].value)}: "
            f"{found[0].user_attrs['record']}")


def texts_line(texts: Sequence[Mapping], verb: str) -> str:
    return f"{verb} {counted(len(texts), 'text')}: " + ", ".join(
        Path(one["file"]).stem for one in texts)


def summary_text(study: Study) -> str:
    """The study so far, as the command prints it."""
    told = study.attributes
    lines = [counts_text(study), texts_line(told["searched"], "searched on"),
             texts_line(told["set_aside"], "set aside") + opened_text(told)
             if told["set_aside"] else "no text is set aside"]
    lines += unranked_lines(study)
    best = study.best()
    for number, objective in enumerate(study.config.objectives):
        lines += ["", *objective_lines(study, objective, best)]
        weights = importances(study, number)
        if weights:
            lines.append("  importance of keys: " + ", ".join(
                f"{key} {value:.2f}" for key, value in list(weights.items())[:8]))
    if best:
        lines += ["", "found on the texts that were searched; --report measures it on others"
                  if told["set_aside"] else "found on the texts that were searched"]
    return "\n".join(lines)


def unranked_lines(study: Study) -> list[str]:
    """Lines about candidates that are not ranked, and a base that holds something else."""
    base = study.config.base[0]
    measured = study.reference[study.searched[0].digest][base]
    off = [f"{held:.3g} times at {budget}" for budget, held in zip(study.config.budgets, measured[HELD])
           if not ranking.alike(held)]
    lines = [f"{base} holds {', '.join(off)} of what the budget gives; candidates are ranked that hold as "
             "it does"] if off and not study.replayer.weighs_bytes else []
    apart = [one for one in study.trials()
             if "unranked" in one.user_attrs and "same_as" not in one.user_attrs]
    if apart:
        first = apart[0]
        lines.append(f"not ranked, {counted(len(apart), 'candidate')} that hold over a twentieth more or less "
                     f"than the budget gives, or lose nothing: such as {first.user_attrs['record']} "
                     f"({first.user_attrs['unranked']})")
    return lines


def opened_text(told: Mapping) -> str:
    opened = told.get("opened", [])
    if not opened:
        return " (not opened)"
    return f" (opened {counted(len(opened), 'time')})"


def objective_lines(study: Study, objective: Objective, best: Sequence[FrozenTrial]) -> list[str]:
    """A table of the best candidates by budget."""
    budgets = list(objective.budgets or study.config.budgets)
    kind = "geometric mean" if objective.reference else "mean"
    lines = [f"{objective.label} ({objective.direction}; {kind} over "
             f"{counted(len(study.searched), 'text')})",
             "  " + "".join(f"{b:>9}" for b in budgets) + f"{'all':>9}  candidate"]
    reference = [study.reference.get(look_key((one, ())), {}) for one in study.searched]
    for one in best:
        table = relative(objective, study.config.budgets, one.user_attrs["measured"], reference)
        cells = [*shown(objective, table.mean(axis=0)), shown(objective, table.mean())]
        lines.append("  " + "".join(f"{cell:>9.4g}" for cell in cells) +
                     f"  {one.number}: {one.user_attrs['record']}")
    return lines


def trials_table(study: Study) -> pandas.DataFrame:
    """A row per candidate: what it was, its values, what became of it."""
    rows = []
    for one in study.trials():
        if one.state == TrialState.WAITING:
            continue
        attributes = one.user_attrs
        why = attributes.get("infeasible", attributes.get("unranked", ""))
        state = "infeasible" if "infeasible" in attributes else \
            "not ranked" if "unranked" in attributes else {
            "COMPLETE": "measured", "PRUNED": "given up", "RUNNING": "at work"}.get(
                one.state.name, one.state.name.lower())
        row = {"candidate": one.number, "state": state, "record": attributes.get("record", "")}
        for number, objective in enumerate(study.config.objectives):
            row[objective.title] = one.values[number] if one.values else math.nan
        row |= {key: one.params[key] for key in one.params}
        rows.append(row | {"reason": why})
    return pandas.DataFrame(rows)
