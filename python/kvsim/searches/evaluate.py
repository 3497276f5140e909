"""Candidates by the dozen: one replay of many records over each text, and what it measured."""

import json
import math
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray

from .. import ranking
from ..errors import DataError, Error, UsageError, error_of
from ..commands import environment, python_with
from ..policy import answers
from ..program import find_program, options, run
from .config import HELD, LOOP, RANKED_BY, UNRANKED, Objective, SearchConfig

# Variable -> value per budget, of one record on one text.
Measured = dict[str, list[float]]

# Why a candidate is not ranked, whatever it holds.
WHY = {ranking.HINDSIGHT: "sees later queries", ranking.NOTHING_LOST: "loses nothing at any budget",
       ranking.SCORES_ALL_EQUAL: "gives all entries one score"}


class Replayer:
    """Measures records on texts as a search says."""

    def __init__(self, config: SearchConfig, threads: int | None = None, model: str | None = None):
        self.budgets = config.budgets
        self.variables = sorted({name for one in config.objectives for name in one.variables})
        self.settings = dict(config.replay)
        self.threads = threads
        self.model = model
        self.loop = self.variables[0].split(".")[0] == LOOP
        declared = {one["name"]: one["units"] for one in json.loads(run(["variables", "--json"]))
                    if one["file"] == "results"}
        # An objective in bytes weighs what a candidate holds; else it is ranked at the budget alone.
        self.weighs_bytes = any(declared.get(name) == "bytes" for name in self.variables)

    def answers(self, trace: str, records: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Of each record as typed its canonical text, and why a replay would not take it ("")."""
        return answers(trace, records, self.budgets)

    def measure(self, trace: str, records: Sequence[str],
                layers: Sequence[int] = ()) -> dict[str, Measured | str]:
        """Measurements of each record, or in words why there are none."""
        try:
            return self._measure(trace, records, layers)
        except (DataError, UsageError) as error:
            if len(records) == 1:
                return {records[0]: str(error)}
        alone: dict[str, Measured | str] = {}   # one of them was refused at work: which?
        for one in records:
            alone |= self.measure(trace, [one], layers)
        return alone

    def _measure(self, trace: str, records: Sequence[str],
                 layers: Sequence[int]) -> dict[str, Measured | str]:
        with tempfile.TemporaryDirectory(prefix="kvsim-search-") as folder:
            results, loop = Path(folder) / "results.nc", Path(folder) / "loop.nc"
            self.replay(trace, results, records, self.loop, layers)
            if not self.loop:
                return read_variables(results, [*self.variables, *RANKED_BY], len(self.budgets))
            run_closed_loop(trace, results, loop, self.model, self.threads)
            names = {one: one.partition(".")[2] or "kl_divergence_mean" for one in self.variables}
            names |= {one: one for one in RANKED_BY}
            found = read_variables(loop, sorted(set(names.values())), len(self.budgets))
            return {record: {one: measured[name] for one, name in names.items()}
                    for record, measured in found.items()}

    def replay(self, trace: str, results: Path, records: Sequence[str], keep: bool,
               layers: Sequence[int] = ()) -> None:
        """The results file of these records; `keep`: with what a closed loop needs."""
        settings = self.settings | ({"layers": layers} if layers else {})
        if "layers" in settings:
            settings["layers"] = ",".join(map(str, settings["layers"]))
        run(["replay", trace, "-o", str(results), "-q", "--overwrite", *options(
            budget=",".join(self.budgets), policy=list(records), threads=self.threads, save_keep=keep,
            metric=[] if self.loop else self.variables, **settings)], progress=False)

    def why_unranked(self, own: Measured, base: Measured) -> str:
        """Reason why a candidate is not ranked on a text ("": it is). Where the base holds more or less than
        a budget gives, candidates must hold as it does."""
        for budget, code, held, usual, base_held in zip(
                self.budgets, own[UNRANKED], own[HELD], base[UNRANKED], base[HELD]):
            if code in WHY and code != usual:
                return WHY[int(code)]
            of = 1.0 if ranking.alike(base_held) else base_held
            if not self.weighs_bytes and not ranking.alike(held / of):
                return f"holds {held:.3g} times what budget {budget} gives" + (
                    f", the base {of:.3g} times" if of != 1 else "")
        return ""


def read_variables(path: Path, names: Iterable[str], budgets: int) -> dict[str, Measured | str]:
    """Variables of a results file by policy, per budget: means over all that is left."""
    with xarray.open_dataset(path, engine="h5netcdf", decode_times=False) as data:
        if data.sizes["budget"] != budgets:
            raise UsageError(f"budgets: {budgets} are given, but on {data.attrs.get('trace')} only "
                             f"{data.sizes['budget']} of them differ")
        found: dict[str, Measured | str] = {str(one): {} for one in data.policy.values}
        for name in names:
            if name not in data:
                raise Error(f"objective: variable {name}: the results have none of this name")
            dims = data[name].dims
            if dims[:1] != ("policy",) or "budget" not in dims:
                raise Error(f"objective: variable {name}: found dimensions {' '.join(dims)}, expected "
                            "policy and budget among them")
            means = data[name].astype(float).mean([one for one in dims if one not in ("policy", "budget")])
            for record, row in zip(found, means.values.tolist()):
                found[record][name] = row
    return found


def objective_value(objective: Objective, budgets: Sequence[str], measured: Sequence[Measured],
                    reference: Sequence[Mapping[str, Measured]]) -> float:
    """One number of a candidate: the mean over texts and budgets, of logarithms where there is a
    reference. Raises ValueError with the reason where it is undefined."""
    total = []
    for one, others in zip(measured, reference):
        values = by_budget(objective, one, others.get(objective.reference, {}))
        for b in map(budgets.index, objective.budgets or budgets):
            if not math.isfinite(values[b]):
                raise ValueError(f"{objective.name} at budget {budgets[b]} is "
                                 + ", ".join(f"{one[name][b]:g}" for name in objective.variables))
            total.append(values[b])
    return float(np.mean(total))


def by_budget(objective: Objective, measured: Measured, reference: Measured) -> list[float]:
    """Per budget of the search: the value, or the logarithm of what it is of the reference's,
    mean over the objective's variables."""
    if not objective.reference:
        return measured[objective.variables[0]]
    logs = [[log_ratio(a, b) for a, b in zip(measured[name], reference[name])]
            for name in objective.variables]
    return [sum(one) / len(one) for one in zip(*logs)]


def log_ratio(value: float, reference: float) -> float:
    return math.log(value / reference) if value > 0 and reference > 0 else math.nan


# ---- the model itself ----

def run_closed_loop(trace: str, results: Path, target: Path, model: str | None,
                    threads: int | None) -> None:
    """Runs the model with what was kept (docs/study.md 8), in an interpreter that has torch."""
    python = python_with(["torch", "transformers"])
    if python is None:
        raise Error("the closed loop needs PyTorch: KVSIM_PYTHON names a Python that has what "
                    "data/requirements.txt lists")
    words = [python, "-P", "-m", "kvsim", "closed-loop", str(trace), str(results),
             f"--out={target}", "--quiet", "--overwrite", f"--kvsim={find_program()}",
             *options(model=model, threads=threads)]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise error_of(1, lines[-1] if lines else f"closed loop: status {done.returncode}")
