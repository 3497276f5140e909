"""Candidates by the dozen: one replay of many records over each text, and what it measured."""

import json
import math
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from .. import ranking
from ..errors import DataError, Error, UsageError, error_of
from ..commands import environment, python_with
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
        told = json.loads(run(["inspect", trace, "--json", "-q",
                               f"--budget={','.join(self.budgets)}",
                               *options(policy=list(records))]))
        return {one["policy"]: (one["record"], one["fault"]) for one in told["policies"]}

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
            results = Path(folder) / "results.nc"
            settings = dict(self.settings)
            if layers:
                settings["layers"] = list(layers)
            if "layers" in settings:
                settings["layers"] = ",".join(map(str, settings["layers"]))
            wanted = [] if self.loop else self.variables
            run(["replay", trace, "-o", str(results), "-q", f"--budget={','.join(self.budgets)}",
                 *options(policy=list(records), metric=wanted, threads=self.threads,
                          save_keep=self.loop, **settings)], progress=False)
            if self.loop:
                return self._closed_loop(trace, results, Path(folder) / "loop.nc")
            return read_variables(results, [*self.variables, *RANKED_BY], len(self.budgets))

    def _closed_loop(self, trace: str, results: Path, target: Path) -> dict[str, Measured | str]:
        run_closed_loop(trace, results, target, self.model, self.threads)
        names = {one: one.partition(".")[2] or "kl_divergence_mean" for one in self.variables}
        names |= {one: one for one in RANKED_BY}
        found = read_variables(target, sorted(set(names.values())), len(self.budgets))
        return {record: {one: measured[name] for one, name in names.items()}
                for record, measured in found.items()}

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
    with h5py.File(path, "r") as file:
        records = [one.decode() if isinstance(one, bytes) else str(one)
                   for one in file["policy"][()]]
        found: dict[str, Measured | str] = {one: {} for one in records}
        for name in names:
            if name not in file:
                raise Error(f"objective: variable {name}: the results have none of this name")
            for record, row in zip(records, _by_budget(file, name, budgets)):
                found[record][name] = [float(one) for one in row]
    return found


def _by_budget(file: h5py.File, name: str, budgets: int) -> np.ndarray:
    dims = _dims(file, name)
    if dims[:1] != ["policy"] or "budget" not in dims:
        raise Error(f"objective: variable {name}: found dimensions {' '.join(dims)}, expected "
                    "policy and budget among them")
    values = np.asarray(file[name][()], dtype=np.float64)
    values = np.moveaxis(values, dims.index("budget"), 1)
    if values.shape[1] != budgets:
        raise UsageError(f"budgets: {budgets} are given, but on {file.attrs.get('trace')} only "
                         f"{values.shape[1]} of them differ")
    flat = values.reshape(*values.shape[:2], -1)
    defined = ~np.isnan(flat)
    count = defined.sum(axis=2)
    return np.where(count > 0, np.where(defined, flat, 0).sum(axis=2) / np.maximum(count, 1),
                    np.nan)


def _dims(file: h5py.File, name: str) -> list[str]:
    """Names of a variable's dimensions, by the scales that netCDF-4 attaches."""
    names = []
    for references in file[name].attrs["DIMENSION_LIST"]:
        names.append(file[references[0]].name.rpartition("/")[2])
    return names


def objective_value(objective: Objective, budgets: Sequence[str], measured: Sequence[Measured],
                    reference: Sequence[Measured]) -> float:
    """One number of a candidate: the mean over texts and budgets, of logarithms where there is a
    reference. Raises ValueError with the reason where it is undefined."""
    chosen = [budgets.index(one) for one in objective.budgets or budgets]
    total = []
    for number, one in enumerate(measured):
        values = by_budget(objective, one, reference[number])
        for b in chosen:
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


def group_values(measured: Mapping[str, Measured | str]) -> tuple[dict[str, Measured],
                                                                 dict[str, str]]:
    """Measured records apart from those that were refused."""
    good = {record: one for record, one in measured.items() if not isinstance(one, str)}
    return good, {record: one for record, one in measured.items() if isinstance(one, str)}
