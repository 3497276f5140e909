"""Findings of a study, as text and as tables; the best on the texts that were set aside, which are opened
by the report alone, and every time is recorded."""

import datetime
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import optuna
import pandas
from optuna.trial import FrozenTrial, TrialState

from .. import ranking
from ..errors import UsageError
from ..plain import counted, csv_text
from ..plots import statistics
from ..whole import write_text
from .config import HELD, OR, RANKED_BY, Objective
from .evaluate import LOOP_LOSS, best_of, folded, relative, shown
from .study import Look, Study

LEAST = 16   # candidates with a key before its importance is told
MOST = 16    # candidates of a front that are measured on texts set aside
#: What becomes of candidates, and how it is counted.
STATES = {"measured": "measured", "again": "the same record as an earlier one", "given up": "given up on the way",
          "infeasible": "infeasible", "unranked": "not ranked", "at work": "at work"}


def tried(study: Study) -> list[FrozenTrial]:
    return [one for one in study.trials() if one.state != TrialState.WAITING]


def state_of(one: FrozenTrial) -> str:
    """What became of a candidate, a word of STATES."""
    given_up = next((what for what in ("infeasible", "unranked") if what in one.user_attrs), "given up")
    return {TrialState.PRUNED: given_up, TrialState.RUNNING: "at work"}.get(one.state, "measured")


def counts(study: Study) -> dict[str, int]:
    """How many candidates were tried, and what became of them."""
    own = Counter("again" if "same_as" in one.user_attrs else state_of(one) for one in tried(study))
    return {"tried": own.total(), **{name: own[name] for name in STATES}}


def counts_text(study: Study) -> str:
    found = counts(study)
    return f"{found['tried']} candidates tried: " + ", ".join(
        f"{found[name]} {text}" for name, text in STATES.items() if found[name] or name == "measured")


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
    return {key: one / whole for key, one in sorted(found.items(), key=lambda item: -item[1]) if whole > 0}


def best_text(study: Study) -> str:
    """One line: the best so far."""
    found = study.best()
    if not found:
        return "none measured yet"
    if len(study.config.objectives) > 1:
        return f"{len(found)} that no other beats in every objective"
    objective, value = study.config.objectives[0], found[0].value
    said = f"{math.exp(value):.3f} of {objective.reference}" if objective.reference else f"{value:.4g}"
    return f"best {said}: {found[0].user_attrs['record']}"


def texts_line(texts: Sequence[Mapping], verb: str) -> str:
    return f"{verb} {counted(len(texts), 'text')}: " + ", ".join(Path(one["file"]).stem for one in texts)


def summary_text(study: Study) -> str:
    """The study so far, as the command prints it."""
    told = study.attributes
    lines = [counts_text(study), texts_line(told["searched"], "searched on")]
    if told["set_aside"]:
        opened = len(told.get("opened", []))
        lines.append(texts_line(told["set_aside"], "set aside")
                     + (f" (opened {counted(opened, 'time')})" if opened else " (not opened)"))
    else:
        lines.append("no text is set aside")
    lines += unranked_lines(study)
    best = study.best()
    for number, objective in enumerate(study.config.objectives):
        lines += ["", *objective_lines(study, objective, best)]
        weights = importances(study, number)
        if weights:
            lines.append("  importance of keys: " + ", ".join(
                f"{key} {value:.2f}" for key, value in list(weights.items())[:8]))
    if best:
        lines += ["", "found on the texts that were searched"
                  + ("; --report measures it on others" if told["set_aside"] else "")]
    return "\n".join(lines)


def unranked_lines(study: Study) -> list[str]:
    """Lines about candidates that are not ranked, and a base that holds something else."""
    base = study.config.base[0]
    measured = study.reference[study.searched[0].digest][base]
    off = [f"{held:.3g} times at {budget}" for budget, held in zip(study.config.budgets, measured[HELD])
           if not ranking.alike(held)]
    lines = [f"{base} holds {', '.join(off)} of what the budget gives; candidates are ranked that hold as "
             "it does"] if off and not study.replayer.weighs_bytes else []
    apart = [one for one in study.trials() if "unranked" in one.user_attrs and "same_as" not in one.user_attrs]
    if apart:
        first = apart[0]
        lines.append(f"not ranked, {counted(len(apart), 'candidate')} that hold over a twentieth more or less "
                     f"than the budget gives, or lose nothing: such as {first.user_attrs['record']} "
                     f"({first.user_attrs['unranked']})")
    return lines


def grid(title: str, columns: Sequence[str], width: int, rows: Sequence[tuple[Sequence[str], str]],
         last: str, fold: str = "all") -> list[str]:
    """Lines of a table: cells at the right of their columns, then what each row is of."""
    return [title, *("  " + "".join(f"{cell:>{width}}" for cell in cells) + f"  {name}"
                     for cells, name in [([*columns, fold], last), *rows])]


def objective_lines(study: Study, objective: Objective, best: Sequence[FrozenTrial]) -> list[str]:
    """A table of the best candidates by budget."""
    kind = "geometric mean" if objective.reference else "mean"
    reference = [study.reference[Look(one).key] for one in study.searched]
    rows = []
    for one in best:
        table = relative(objective, study.config.budgets, one.user_attrs["measured"], reference)
        means = [*shown(objective, table.mean(axis=0)), shown(objective, folded(objective, table, study.searched))]
        rows.append(([f"{mean:.4g}" for mean in means], f"{one.number}: {one.user_attrs['record']}"))
    return grid(f"{objective.label} ({objective.direction}; {kind} over "
                f"{counted(len(study.searched), 'text')})", objective.budgets or study.config.budgets, 9, rows,
                "candidate", "worst" if objective.worst else "all")


def trials_table(study: Study) -> pandas.DataFrame:
    """A row per candidate: what it was, its values, what became of it."""
    rows = []
    for one in tried(study):
        state, own = state_of(one), one.user_attrs
        values = one.values or [math.nan] * len(study.config.objectives)
        rows.append({"candidate": one.number, "state": "not ranked" if state == "unranked" else state,
                     "record": own.get("record", ""),
                     **{objective.title: value for objective, value in zip(study.config.objectives, values)},
                     **one.params, "reason": own.get("infeasible", own.get("unranked", ""))})
    return pandas.DataFrame(rows)


# ---- on texts set aside ----

class Report:
    """Measurements of a study's best on the texts set aside."""

    def __init__(self, study: Study, closed_loop: bool = False):
        self.study, self.config, self.closed_loop = study, study.config, closed_loop
        self.best = [one.user_attrs["record"] for one in study.best()][:MOST]
        if not self.best:
            raise UsageError(f"{study.folder.path}: no candidate is measured yet")
        references = [record for one in self.config.objectives for record in one.references]
        others = list(dict.fromkeys([*references, *self.config.base, *self.config.beside]))
        names = study.replayer.answers(study.aside[0].file, others)
        for record, fault in names.values():
            if fault:
                raise UsageError(fault)
        self.canonical = {one: names[one][0] for one in others}
        self.records = list(dict.fromkeys([*self.best, *self.canonical.values()]))
        first = next((one for one in self.config.objectives if one.reference), None)
        self.reference = OR.join(self.canonical[one] for one in first.references) if first else ""
        self.variables = list(study.replayer.variables)
        if closed_loop and LOOP_LOSS not in self.variables:
            self.variables.append(LOOP_LOSS)

    def run(self) -> str:
        """Measures and writes everything; the report as text."""
        study, folder = self.study, self.study.folder.path
        # Who looks has looked: that the texts are opened is written down before they are.
        with study.turn.held():
            self.before = list(study.attributes.get("opened", []))
            study.optuna.set_user_attr("opened", [*self.before, {
                "time": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "tried": counts(study)["tried"], "best": self.best,
                "beside": list(self.canonical.values()), "closed_loop": self.closed_loop,
                "set_aside": [one.digest for one in study.aside]}])
        (folder / "report").mkdir(parents=True, exist_ok=True)
        self.measured = [study.replayer.measured(
            one.file, folder / "report" / f"{one.name}.nc", self.records, self.closed_loop) for one in study.aside]
        rows = [[text.name, record, budget, variable, f"{value:.9g}", self.reference]
                for text, found in zip(study.aside, self.measured) for record in self.records
                for variable, values in found[record].items() if variable not in RANKED_BY
                for budget, value in zip(self.config.budgets, values)]
        write_text(folder / "report.csv", csv_text(pandas.DataFrame(
            rows, columns=["text", "policy", "budget", "variable", "value", "reference"])))
        text = self.text()
        write_text(folder / "report.txt", text + "\n")
        return text

    # ---- as text ----

    def text(self) -> str:
        """The report: what was tried, on what, when the texts were opened, and what was found."""
        told = self.study.attributes
        lines = [counts_text(self.study)]
        for verb, name in (("searched on", "searched"), ("reported on", "set_aside")):
            lines.append(f"{verb}:")
            lines += [f"  {Path(one['file']).stem}: kind {one['kind']}, seed {one['seed']}, length "
                      f"{one['length']}, {one['digest']}" for one in told[name]]
        apart = ", ".join(self.config.apart)
        lines.append(f"no text of one list has {' or '.join(self.config.apart)} of one of "
                     f"the other" if apart else "the texts differ in their content alone")
        if self.before:
            lines += [f"the texts set aside had been opened before, {counted(len(self.before), 'time')}: what was "
                      "chosen since then may have been chosen by them"]
            lines += [f"  {one['time']}, after {one['tried']} candidates, for {one['best'][0]}" for one in self.before]
        else:
            lines.append("the texts set aside were opened for this report, for the first time")
        for variable in self.variables:
            lines += ["", *self._table(self.objective(variable))]
        base, said = self.canonical[self.config.base[0]], {}   # who does not hold what it does: no fair comparison
        for text, measured in zip(self.study.aside, self.measured):
            for record in self.records:
                if why := self.study.replayer.why_unranked(measured[record], measured[base]):
                    said.setdefault(record, f"{record} {why} on {text.name}")
        if said:
            lines += ["", "not to be ranked with the others: " + "; ".join(said.values())]
        return "\n".join(lines)

    def objective(self, variable: str) -> Objective:
        """One variable alone, against what the search's objectives compare it with."""
        own = next((one for one in self.config.objectives if variable in one.variables), None)
        reference = self.reference if own is None else own.reference
        return Objective((variable,), reference, own.direction if own else "minimize")

    def table(self, objective: Objective) -> dict[str, np.ndarray]:
        """Per policy [texts, budgets]: ln of the value over the reference's, or the value."""
        compared = [self.canonical.get(one, one) for one in objective.references]
        reference = [{objective.reference: best_of(objective, [text[one] for one in compared])}
                     for text in self.measured]
        return {record: relative(objective, self.config.budgets, [one[record] for one in self.measured],
                                 reference) for record in self.records}

    def _table(self, objective: Objective) -> list[str]:
        several = len(self.measured) > 1
        kind = "geometric mean" if objective.reference or scale(objective) == "log" else "mean"
        rows = []
        for record, logs in self.table(objective).items():
            per_text = logs.mean(axis=1)
            rows.append(([interval_text(column, objective) for column in [*logs.T, per_text]],
                         f"{shown(objective, np.max(per_text)):<10.3g}"
                         + ("found: " if record in self.best else "") + record))
        return grid(f"{objective.label}: {kind} over {counted(len(self.measured), 'text')}"
                    + (" [95 % interval over texts]" if several else "")
                    + "; last the text where it is highest, over budgets", self.config.budgets, 22, rows,
                    f"{'highest':<10}policy")


def scale(objective: Objective) -> str:
    """The scale of its intervals: logarithms of ratios are there already."""
    return "plain" if objective.reference else ranking.scale_of(objective.variables[0])


def interval_text(values: Sequence[float], objective: Objective) -> str:
    """Mean over texts, with its interval where there are several."""
    mean, ends = statistics.over_traces(np.asarray(values), scale(objective))
    mean, low, high = shown(objective, np.array([mean, *ends]))
    return f"{mean:.3g}" if len(values) < 2 else f"{mean:.3g} [{low:.3g}, {high:.3g}]"
