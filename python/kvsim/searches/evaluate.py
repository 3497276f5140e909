"""Candidates by the dozen: one replay of many records over each text, and what it measured."""

import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray

from .. import ranking
from ..errors import DataError, Error, UsageError
from ..policy import answers
from ..program import find_program, options, run
from .config import HELD, LOOP, RANKED_BY, UNRANKED, Objective, SearchConfig, Text

# Variable -> value per budget, of one record on one text.
Measured = dict[str, list[float]]

LOOP_LOSS = "kl_divergence_mean"
# Why a candidate is not ranked, whatever it holds.
WHY = {ranking.HINDSIGHT: "sees later queries", ranking.NOTHING_LOST: "loses nothing at any budget",
       ranking.SCORES_ALL_EQUAL: "gives all entries one score"}


class Replayer:
    """Measures records on texts as a search says."""

    def __init__(self, config: SearchConfig, threads: int | None = None, model: str | None = None):
        self.budgets, self.settings = config.budgets, config.replay
        self.variables = sorted({name for one in config.objectives for name in one.variables})
        self.threads, self.model = threads, model
        self.loop = self.variables[0].split(".")[0] == LOOP
        declared = {one["name"]: one["units"] for one in json.loads(run(["variables", "--json"]))
                    if one["file"] == "results"}
        # An objective in bytes weighs what a candidate holds; else it is ranked at the budget alone.
        self.weighs_bytes = any(declared.get(name) == "bytes" for name in self.variables)

    def answers(self, trace: str, records: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Of each record as typed its canonical text, and why a replay would not take it ("")."""
        return answers(trace, records, self.budgets)

    def measure(self, trace: str, records: Sequence[str], layers: Sequence[int] = ()) -> dict[str, Measured | str]:
        """Measurements of each record, or in words why there are none."""
        try:
            with tempfile.TemporaryDirectory(prefix="kvsim-search-") as folder:
                return self.measured(trace, Path(folder) / "results.nc", records, layers=layers)
        except (DataError, UsageError) as error:
            if len(records) == 1:
                return {records[0]: str(error)}
        # One of them was refused at work: which?
        return {name: one for record in records for name, one in self.measure(trace, [record], layers).items()}

    def measured(self, trace: str, results: Path, records: Sequence[str], closed_loop: bool = False,
                 layers: Sequence[int] = ()) -> dict[str, Measured]:
        """Replays records into a results file and reads the objectives' variables; `closed_loop`: and
        what the model itself loses."""
        layers = layers or self.settings.get("layers")
        settings = self.settings | ({} if layers is None else {"layers": ",".join(map(str, layers))})
        keep = self.loop or closed_loop
        run(["replay", trace, "-o", str(results), "-q", "--overwrite", *options(
            budget=",".join(self.budgets), policy=list(records), threads=self.threads, save_keep=keep,
            metric=[] if self.loop else self.variables, **settings)], progress=False)
        found = self.read(results, {one: one for one in (*RANKED_BY, *([] if self.loop else self.variables))})
        if keep:
            loop = results.with_suffix(".loop.nc")
            run(["closed-loop", trace, results, "-o", loop, "-q", "--overwrite", *options(
                kvsim=find_program(), model=self.model, threads=self.threads)], progress=False)
            own = {one: one.partition(".")[2] or LOOP_LOSS for one in self.variables if self.loop}
            if closed_loop:
                own[LOOP_LOSS] = LOOP_LOSS
            for record, values in self.read(loop, own).items():
                found[record] |= values
        return found

    def read(self, path: Path, names: Mapping[str, str]) -> dict[str, Measured]:
        """Variables of a results file by policy and budget, means over all that is left; `names`: what
        they are called here."""
        with xarray.open_dataset(path, engine="h5netcdf", decode_times=False) as data:
            if data.sizes["budget"] != len(self.budgets):
                raise UsageError(f"budgets: {len(self.budgets)} are given, but on {data.attrs.get('trace')} "
                                 f"only {data.sizes['budget']} of them differ")
            found: dict[str, Measured] = {str(one): {} for one in data.policy.values}
            for own, name in names.items():
                if name not in data:
                    raise Error(f"objective: variable {name}: the results have none of this name")
                dims = data[name].dims
                if dims[:1] != ("policy",) or "budget" not in dims:
                    raise Error(f"objective: variable {name}: found dimensions {' '.join(dims)}, expected "
                                "policy and budget among them")
                means = data[name].astype(float).mean([one for one in dims if one not in ("policy", "budget")])
                for record, row in zip(found, means.values.tolist()):
                    found[record][own] = row
        return found

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


# ---- what an objective makes of it ----

def relative(objective: Objective, budgets: Sequence[str], measured: Iterable[Measured],
             reference: Iterable[Mapping[str, Measured]]) -> np.ndarray:
    """[texts, budgets]: the value, or ln of what it is of the reference's, mean over the objective's
    variables; NaN where that is undefined."""
    rows = []
    for own, others in zip(measured, reference):
        values = own[objective.variables[0]]
        if objective.reference:
            other = others.get(objective.reference, {})
            logs = [list(map(log_ratio, own[name], other[name])) for name in objective.variables]
            values = [sum(one) / len(one) for one in zip(*logs)]
        rows.append([values[budgets.index(b)] for b in objective.budgets or budgets])
    return np.array(rows)


def log_ratio(value: float, reference: float) -> float:
    return math.log(value / reference) if value > 0 and reference > 0 else math.nan


def best_of(objective: Objective, references: Sequence[Measured]) -> Measured:
    """What an objective compares with on a text: at each budget the best value of its references there."""
    return {name: list(map(objective.better, zip(*(one[name] for one in references)))) for name in objective.variables}


def objective_value(objective: Objective, budgets: Sequence[str], measured: Sequence[Measured],
                    reference: Sequence[Mapping[str, Measured]], texts: Sequence[Text]) -> float:
    """One number of a candidate: the mean over texts and budgets, or the worst of the means that the objective
    takes apart. Raises ValueError with the reason where it is undefined."""
    values = relative(objective, budgets, measured, reference)
    for own, row in zip(measured, values):
        for budget, one in zip(objective.budgets or budgets, row):
            if not math.isfinite(one):
                found = (own[name][budgets.index(budget)] for name in objective.variables)
                raise ValueError(f"{objective.name} at budget {budget} is " + ", ".join(f"{one:g}" for one in found))
    return folded(objective, values, texts)


def folded(objective: Objective, values: np.ndarray, texts: Sequence[Text]) -> float:
    """The number that values [texts, budgets] stand for."""
    parts: dict[tuple, list[float]] = {}
    for text, row in zip(texts, values):
        for at, value in enumerate(row):
            of = {"model": text.model, "text": text.digest, "budget": at}
            parts.setdefault(tuple(of[one] for one in objective.worst), []).append(value)
    worse = max if objective.better is min else min
    return float(worse(map(np.mean, parts.values())))


def shown(objective: Objective, values: np.ndarray) -> np.ndarray:
    """Means of logarithms as the ratios that they stand for."""
    return np.exp(values) if objective.reference else values
