"""The file of a search: what is varied, on which texts, judged by what."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from ..budgets import budget_text
from ..errors import DataError, UsageError
from ..plain import read_text

SAMPLERS = ("tpe", "random", "nsga2")
PRUNERS = ("none", "median", "percentile", "halving")
APART = ("kind", "seed", "length")
REPLAY = {"wo_steps": int, "layers": list, "importance": str, "scope": str, "horizon": int,
          "seed": int}
RANKED_BY = UNRANKED, HELD = "unranked", "held_of_budget"   # of a results file (docs/metrics.md 6)
LOOP = "closed_loop"   # `variable` of an objective: what the model itself loses


@dataclass(frozen=True)
class Objective:
    """A variable of a results file at some budgets, or several; against a reference by logarithms."""

    variables: tuple[str, ...] = ("stream_error_rms",)   # several: the geometric mean of them
    reference: str = ""             # a record; empty: the value itself
    direction: str = "minimize"
    budgets: tuple[str, ...] = ()   # empty: all of the search

    @property
    def title(self) -> str:
        text = f"ln {self.name} / {self.reference}" if self.reference else self.name
        return text + (f" at {', '.join(self.budgets)}" if self.budgets else "")

    @property
    def label(self) -> str:
        return f"{self.name} relative to {self.reference}" if self.reference else self.name

    @property
    def name(self) -> str:
        one = " · ".join(self.variables)
        return one if len(self.variables) == 1 else f"geometric mean of {one}"


@dataclass(frozen=True)
class Sampler:
    """How the next candidates are chosen."""

    kind: str = "tpe"
    startup: int = 64       # candidates at random before the sampler learns
    population: int = 0     # of nsga2; 0: the group


@dataclass(frozen=True)
class Pruner:
    """When a candidate is given up after some of the texts."""

    kind: str = "none"
    startup: int = 32              # finished candidates before any is given up
    percentile: float = 50.0       # of `percentile`: kept below it
    layers: tuple[int, ...] = ()   # a first look at these layers of the first text


@dataclass(frozen=True)
class SearchConfig:
    """A whole search, checked as far as the file alone tells."""

    path: str
    base: tuple[str, ...]
    vary: Mapping[str, Any]
    budgets: tuple[str, ...]
    search: tuple[Mapping[str, Any], ...]
    report: tuple[Mapping[str, Any], ...] = ()
    apart: tuple[str, ...] = APART
    objectives: tuple[Objective, ...] = (Objective(),)
    start: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    trials: int = 256
    group: int = 32
    seed: int = 0
    sampler: Sampler = field(default_factory=Sampler)
    pruner: Pruner = field(default_factory=Pruner)
    replay: Mapping[str, Any] = field(default_factory=dict)

    def identity(self) -> str:
        """Identity of a study: everything but the number of trials and names of files."""
        told = {name: value for name, value in self.__dict__.items()
                if name not in ("path", "trials", "search", "report", "beside")}
        for name in ("sampler", "pruner"):
            told[name] = told[name].__dict__
        told["ranked_by"] = RANKED_BY
        told["objectives"] = [one.__dict__ for one in self.objectives]
        return json.dumps(told, sort_keys=True, default=list)


class Table:
    """A table of the file whose keys are taken out one by one; what is left is a mistake."""

    def __init__(self, given: Any, where: str):
        self.where = where
        if not isinstance(given, Mapping):
            raise self.wrong("", given, "a table")
        self.left = dict(given)

    def wrong(self, key: str, found: Any, expected: str) -> UsageError:
        place = f"{self.where}: {key}" if key else self.where
        return UsageError(f"{place}: found {show(found)}, expected {expected}")

    def take(self, key: str, kind: type, default: Any, expected: str, valid=lambda _: True) -> Any:
        if key not in self.left:
            return default
        found = self.left.pop(key)
        if kind is float and type(found) is int:
            found = float(found)
        if type(found) is not kind or not valid(found):
            raise self.wrong(key, found, expected)
        return found

    def word(self, key: str, words: Iterable[str], default: str) -> str:
        words = tuple(words)
        return self.take(key, str, default, "one of " + ", ".join(words), words.__contains__)

    def count(self, key: str, default: int, least: int = 0) -> int:
        return self.take(key, int, default, f"a whole number >= {least}", lambda x: x >= least)

    def texts(self, key: str, default: tuple = ()) -> tuple[str, ...]:
        """A text, or a list of them."""
        if isinstance(self.left.get(key), str):
            return (self.left.pop(key),)
        expected = "a text, or a list of texts"
        return tuple(self.take(key, list, list(default), expected,
                               lambda all_: all(isinstance(one, str) for one in all_)))

    def done(self) -> None:
        for key, found in self.left.items():
            raise UsageError(f"{self.where}: unknown key {key} = {show(found)}")


def show(value: Any) -> str:
    """A value of the file on one line."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def budget_list(table: Table, key: str) -> tuple[str, ...]:
    def good(one: Any) -> bool:
        return type(one) in (int, float, str) and (isinstance(one, str) or one > 0)

    found = table.take(key, list, [], "a list such as [0.1, 0.5, 512]",
                       lambda all_: bool(all_) and all(map(good, all_)))
    return tuple(budget_text(one, f"{table.where}: {key}:") for one in found)


def traces_of(table: Table, key: str, folder: Path) -> tuple[Mapping[str, Any], ...]:
    """Texts as {file, kind, seed, length}; what is not said follows from names and traces."""
    traces = []
    for one in table.take(key, list, [], "a list of traces"):
        entry = Table({"file": one} if isinstance(one, str) else one, f"{table.where}: {key}")
        file = entry.take("file", str, "", "the name of a trace", bool)
        if not file:
            raise entry.wrong("file", None, "the name of a trace")
        told = {"file": str(folder / file)}   # from that of the search's file, as in a sweep's
        for name, kind in (("kind", str), ("seed", int), ("length", int)):
            value = entry.take(name, kind, None, "a text" if kind is str else "a whole number")
            if value is not None:
                told[name] = value
        entry.done()
        traces.append(told)
    return tuple(traces)


def objective_of(given: Any, where: str) -> Objective:
    table = Table(given, where)
    one = Objective(
        variables=table.texts("variable", Objective.variables),
        reference=table.take("reference", str, "", "a record"),
        direction=table.word("direction", ("minimize", "maximize"), "minimize"),
        budgets=budget_list(table, "budgets"))
    table.done()
    if not one.variables or not all(one.variables):
        raise table.wrong("variable", list(one.variables), "the name of a variable, or a list")
    if len(one.variables) > 1 and not one.reference:
        raise UsageError(f"{where}: reference is missing: several variables have a mean only "
                         "relative to a record's")
    return one


def objectives_of(table: Table, budgets: tuple[str, ...], base: str) -> tuple[Objective, ...]:
    given = table.left.pop("objective", None)
    if given is None:
        given = {"reference": base}
    several = given if isinstance(given, list) else [given]
    if not several:
        raise table.wrong("objective", given, "[objective], or several [[objective]]")
    found = tuple(objective_of(one, f"{table.where}: objective") for one in several)
    for one in found:
        for budget in one.budgets:
            if budget not in budgets:
                raise UsageError(f"{table.where}: objective: budgets: found {budget}, expected "
                                 f"some of budgets, {', '.join(budgets)}")
    loops = [name.split(".")[0] == LOOP for one in found for name in one.variables]
    if any(loops) and not all(loops):
        raise UsageError(f"{table.where}: objective: all of the closed loop, or none")
    return found


def read(given: str | PathLike | Mapping[str, Any]) -> SearchConfig:
    """Reads and checks the file of a search, or the same as a dictionary."""
    if isinstance(given, Mapping):
        return config_of(given, "search", Path())
    path = Path(given)
    try:
        if not path.exists():
            raise DataError(f"{path}: no such file")
        document = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    return config_of(document, str(path), path.parent)


def config_of(document: Mapping[str, Any], where: str, folder: Path) -> SearchConfig:
    table = Table(document, where)
    base = table.texts("base")
    budgets = budget_list(table, "budgets")
    if "policy" in document:
        raise UsageError(f"{where}: found [[policy]], the table of a sweep; expected base and "
                         "[vary] (kvsim sweep runs this file)")
    for name, value in (("base", base), ("budgets", budgets), ("vary", table.left.get("vary"))):
        if not value:
            raise UsageError(f"{where}: {name} is missing")
    vary = Table(table.left.pop("vary"), f"{where}: vary").left
    traces = Table(table.left.pop("traces", {}), f"{where}: traces")
    search = traces_of(traces, "search", folder)
    if not search:
        raise UsageError(f"{where}: traces: search is missing: expected a list of traces")
    report = traces_of(traces, "report", folder)
    apart = traces.texts("apart", APART)
    for one in apart:
        if one not in APART:
            raise traces.wrong("apart", one, "some of " + ", ".join(APART))
    traces.done()
    found = SearchConfig(
        path=where, base=base, vary=vary, budgets=budgets, search=search, report=report,
        apart=apart, objectives=objectives_of(table, budgets, base[0]),
        start=table.texts("start", base), beside=table.texts("beside"),
        trials=table.count("trials", 256, 1), group=table.count("group", 32, 1),
        seed=table.count("seed", 0), sampler=sampler_of(table), pruner=pruner_of(table),
        replay=replay_of(table))
    table.done()
    if len(found.objectives) > 1 and found.pruner.kind != "none":
        raise UsageError(f"{where}: pruner: several objectives cannot be pruned by, expected none")
    return found


def sampler_of(table: Table) -> Sampler:
    own = Table(table.left.pop("sampler", {}), f"{table.where}: sampler")
    found = Sampler(kind=own.word("kind", SAMPLERS, "tpe"), startup=own.count("startup", 64, 1),
                    population=own.count("population", 0))
    own.done()
    return found


def pruner_of(table: Table) -> Pruner:
    own = Table(table.left.pop("pruner", {}), f"{table.where}: pruner")
    layers = own.take("layers", list, [], "a list of layers",
                      lambda all_: all(type(one) is int and one >= 0 for one in all_))
    found = Pruner(kind=own.word("kind", PRUNERS, "median" if layers else "none"),
                   startup=own.count("startup", 32, 1), layers=tuple(layers),
                   percentile=own.take("percentile", float, 50.0, "a number in (0, 100)",
                                       lambda x: 0 < x < 100))
    own.done()
    return found


def replay_of(table: Table) -> dict[str, Any]:
    own = Table(table.left.pop("replay", {}), f"{table.where}: replay")
    found = {}
    for name, kind in REPLAY.items():
        value = own.take(name, kind, None, {int: "a whole number", str: "a text",
                                            list: "a list of layers"}[kind])
        if value is not None:
            found[name] = value
    own.done()
    return found
