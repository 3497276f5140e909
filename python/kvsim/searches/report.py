"""The best on the texts that were set aside: opened by this alone, and every time is recorded."""

import datetime
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from .. import ranking
from ..errors import UsageError
from ..plain import counted, csv_text
from ..plots import statistics
from ..whole import write_text
from .config import RANKED_BY, Objective
from .evaluate import Measured, read_variables, run_closed_loop
from .study import Study
from .summary import counts, counts_text, relative, shown

LOOP_LOSS = "kl_divergence_mean"
MOST = 16   # candidates of a front that are measured


class Report:
    """Measurements of a study's best on the texts set aside."""

    def __init__(self, study: Study, *, closed_loop: bool = False, model: str | None = None,
                 threads: int | None = None):
        self.study = study
        self.closed_loop = closed_loop
        self.model, self.threads = model, threads
        self.best = [one.user_attrs["record"] for one in study.best()][:MOST]
        if not self.best:
            raise UsageError(f"{study.folder.path}: no candidate is measured yet")
        references = [one.reference for one in study.config.objectives if one.reference]
        self.others = list(dict.fromkeys([*references, *study.config.base, *study.config.beside]))
        names = study.replayer.answers(study.aside[0].file, self.others)
        for record, fault in names.values():
            if fault:
                raise UsageError(fault)
        self.canonical = {one: names[one][0] for one in self.others}
        self.records = list(dict.fromkeys([*self.best, *self.canonical.values()]))
        self.reference = self.canonical[references[0]] if references else ""
        self.variables = sorted({name for one in study.config.objectives for name in one.variables})
        self.folder = study.folder.path / "report"

    def open(self) -> dict[str, Any]:
        """Writes down that the texts are opened, before they are: who looks has looked."""
        opened = list(self.study.attributes.get("opened", []))
        entry = {"time": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                 "tried": counts(self.study)["tried"], "best": self.best,
                 "beside": list(self.canonical.values()), "closed_loop": self.closed_loop,
                 "set_aside": [one.digest for one in self.study.aside]}
        self.study.optuna.set_user_attr("opened", [*opened, entry])
        return entry

    def run(self) -> str:
        """Measures and writes everything; the report as text."""
        with self.study.folder.turn.held():
            self.before = list(self.study.attributes.get("opened", []))
            self.open()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.measured = [self._measure(one) for one in self.study.aside]
        rows = [[text.name, record, budget, variable, f"{value:.9g}", self.reference]
                for text, found in zip(self.study.aside, self.measured) for record in self.records
                for variable, values in found[record].items() if variable not in RANKED_BY
                for budget, value in zip(self.study.config.budgets, values)]
        write_text(self.study.folder.path / "report.csv", csv_text(pandas.DataFrame(
            rows, columns=["text", "policy", "budget", "variable", "value", "reference"])))
        text = self.text()
        write_text(self.study.folder.path / "report.txt", text + "\n")
        return text

    def _measure(self, text) -> dict[str, Measured]:
        results, replayer = self.folder / f"{text.name}.nc", self.study.replayer
        keep, count = self.closed_loop or replayer.loop, len(replayer.budgets)
        replayer.replay(text.file, results, self.records, keep)
        found = read_variables(results, [*([] if replayer.loop else self.variables), *RANKED_BY], count)
        if keep:
            loop = self.folder / f"{text.name}.loop.nc"
            run_closed_loop(text.file, results, loop, self.model, self.threads)
            for record, values in read_variables(loop, [LOOP_LOSS], count).items():
                found[record] |= values
        return found

    # ---- as text ----

    def text(self) -> str:
        """The report: what was tried, on what, when the texts were opened, and what was found."""
        told = self.study.attributes
        lines = [counts_text(self.study)]
        for verb, name in (("searched on", "searched"), ("reported on", "set_aside")):
            lines.append(f"{verb}:")
            lines += [f"  {Path(one['file']).stem}: kind {one['kind']}, seed {one['seed']}, length "
                      f"{one['length']}, {one['digest']}" for one in told[name]]
        apart = ", ".join(self.study.config.apart)
        lines.append(f"no text of one list has {' or '.join(self.study.config.apart)} of one of "
                     f"the other" if apart else "the texts differ in their content alone")
        lines += self._openings()
        loss = [LOOP_LOSS] if self.closed_loop and LOOP_LOSS not in self.variables else []
        for variable in self.variables + loss:
            lines += ["", *self._table(variable, self.objective(variable))]
        return "\n".join(lines + self._unranked())

    def _unranked(self) -> list[str]:
        """Lines about policies that do not hold what the base does: no fair comparison."""
        base = self.canonical[self.study.config.base[0]]
        said = {}
        for text, measured in zip(self.study.aside, self.measured):
            for record in self.records:
                if why := self.study.replayer.why_unranked(measured[record], measured[base]):
                    said.setdefault(record, f"{record} {why} on {text.name}")
        return ["", "not to be ranked with the others: " + "; ".join(said.values())] if said else []

    def objective(self, variable: str) -> Objective:
        """One variable alone, against what the search's objectives compare it with."""
        own = next((one for one in self.study.config.objectives if variable in one.variables), None)
        reference = self.reference if own is None else own.reference
        return Objective((variable,), reference, own.direction if own else "minimize")

    def _openings(self) -> list[str]:
        if not self.before:
            return ["the texts set aside were opened for this report, for the first time"]
        lines = [f"the texts set aside had been opened before, "
                 f"{counted(len(self.before), 'time')}: what was chosen since then may have been "
                 "chosen by them"]
        return lines + [f"  {one['time']}, after {one['tried']} candidates, for {one['best'][0]}"
                        for one in self.before]

    def table(self, variable: str, objective: Objective) -> dict[str, np.ndarray]:
        """Per policy [texts, budgets]: ln of the value over the reference's, or the value."""
        if variable not in self.measured[0][self.records[0]]:
            objective = replace(objective, variables=(LOOP_LOSS,))
        reference = [{objective.reference: one.get(self.reference, {})} for one in self.measured]
        return {record: relative(objective, self.study.config.budgets,
                                 [one[record] for one in self.measured], reference)
                for record in self.records}

    def _table(self, variable: str, objective: Objective) -> list[str]:
        budgets = self.study.config.budgets
        kind = "geometric mean" if objective.reference or scale(objective) == "log" else "mean"
        lines = [f"{objective.label}: {kind} over "
                 + counted(len(self.measured), "text")
                 + (" [95 % interval over texts]" if len(self.measured) > 1 else "")
                 + "; last the text where it is highest, over budgets",
                 "  " + "".join(f"{b:>22}" for b in [*budgets, "all"])
                 + f"  {'highest':<10}policy"]
        for record, logs in self.table(variable, objective).items():
            cells = [interval_text(column, objective) for column in [*logs.T, logs.mean(axis=1)]]
            per_text = logs.mean(axis=1)
            highest = shown(objective, np.max(per_text))
            mark = "found: " if record in self.best else ""
            lines.append("  " + "".join(f"{cell:>22}" for cell in cells) +
                         f"  {highest:<10.3g}{mark}{record}")
        return lines


def scale(objective: Objective) -> str:
    """The scale of its intervals: logarithms of ratios are there already."""
    return "plain" if objective.reference else ranking.scale_of(objective.variables[0])


def interval_text(values: Sequence[float], objective: Objective) -> str:
    """Mean over texts, with its interval where there are several."""
    mean, ends = statistics.over_traces(np.asarray(values), scale(objective))
    mean, low, high = shown(objective, np.array([mean, *ends]))
    return f"{mean:.3g}" if len(values) < 2 else f"{mean:.3g} [{low:.3g}, {high:.3g}]"
