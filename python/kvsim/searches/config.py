"""The file of a search: what is varied, on which texts, judged by what; that texts set aside differ."""

import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..budgets import budget_text
from ..errors import DataError, UsageError
from ..plain import read_text
from ..program import run

APART = ("kind", "seed", "length")
RANKED_BY = UNRANKED, HELD = "unranked", "held_of_budget"   # of a results file (docs/metrics.md 6)
OR = " or "   # between references: whichever is best on a text at a budget
PARTS = ("model", "text", "budget")   # what an objective's mean may be taken over apart
LOOP = "closed_loop"   # `variable` of an objective: what the model itself loses


@dataclass(frozen=True)
class Objective:
    """A variable of a results file at some budgets, or several; against a reference by logarithms."""

    variables: tuple[str, ...]   # several: the geometric mean of them
    reference: str = ""          # a record, or several joined by OR; empty: the value itself
    direction: str = "minimize"
    budgets: tuple[str, ...] = ()   # empty: all of the search
    worst: tuple[str, ...] = ()     # of PARTS: the worst of their means counts; empty: the mean of all

    @property
    def references(self) -> list[str]:
        return self.reference.split(OR) if self.reference else []

    @property
    def better(self) -> Callable[..., float]:
        return min if self.direction == "minimize" else max

    @property
    def title(self) -> str:
        text = f"ln {self.name} / {self.reference}" if self.reference else self.name
        return text + (f" at {', '.join(self.budgets)}" if self.budgets else "")

    @property
    def label(self) -> str:
        """Its name, what it is compared with, and what of it counts."""
        text = f"{self.name} relative to {self.reference}" if self.reference else self.name
        return text + (f", the worst {' and '.join(self.worst)}" if self.worst else "")

    @property
    def name(self) -> str:
        one = " · ".join(self.variables)
        return one if len(self.variables) == 1 else f"geometric mean of {one}"


class SearchConfig(SimpleNamespace):
    """A whole search, checked as far as the file alone tells: the keys of KEYS."""

    def identity(self) -> str:
        """Identity of a study: everything but the number of trials and names of files."""
        told = {name: value for name, value in vars(self).items()
                if name not in ("path", "trials", "search", "report", "beside")}
        told |= {"sampler": vars(self.sampler), "pruner": vars(self.pruner), "ranked_by": RANKED_BY,
                 "objectives": [{name: value for name, value in asdict(one).items() if value or name != "worst"}
                                for one in self.objectives]}
        return json.dumps(told, sort_keys=True)


# ---- what a key may be: its default, and what reads it ----

Key = tuple[Any, Callable[[Any, str], Any]]


def wrong(where: str, found: Any, expected: str) -> UsageError:
    return UsageError(f"{where}: found {show(found)}, expected {expected}")


def show(value: Any) -> str:
    """A value of the file on one line."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def of_type(default: Any, kind: type, expected: str, valid: Callable[[Any], bool] = lambda _: True) -> Key:
    def read(found: Any, where: str) -> Any:
        if kind is float and type(found) is int:
            found = float(found)
        if type(found) is not kind or not valid(found):
            raise wrong(where, found, expected)
        return tuple(found) if kind is list else found

    return default, read


def count(default: int, least: int = 0) -> Key:
    return of_type(default, int, f"a whole number >= {least}", lambda x: x >= least)


def word(*words: str) -> Key:
    """One of several, the first without."""
    return of_type(words[0], str, "one of " + ", ".join(words), words.__contains__)


def texts(default: tuple[str, ...] = (), expected: str = "a text, or a list of texts",
          valid: Callable[[str], bool] = lambda _: True) -> Key:
    _, read = of_type(default, list, expected, lambda all_: all(isinstance(one, str) and valid(one) for one in all_))
    return default, lambda found, where: read([found] if isinstance(found, str) else found, where)


def some_layers(default: Any) -> Key:
    return of_type(default, list, "a list of layers", lambda all_: all(type(one) is int and one >= 0 for one in all_))


def some_budgets() -> Key:
    def good(one: Any) -> bool:
        return isinstance(one, str) or type(one) in (int, float) and one > 0

    _, read = of_type((), list, "a list such as [0.1, 0.5, 512]", lambda all_: all_ and all(map(good, all_)))
    return (), lambda found, where: tuple(budget_text(one, f"{where}:") for one in read(found, where))


def traces() -> Key:
    """Texts as {file, kind, seed, length}; what is not said follows from names and traces."""
    _, read = of_type((), list, "a list of traces")

    def each(found: Any, where: str) -> tuple[dict[str, Any], ...]:
        given = [{"file": one} if isinstance(one, str) else one for one in read(found, where)]
        told = [vars(table(one, TRACE, where)) for one in given]
        for one in told:
            if one["file"] is None:
                raise wrong(f"{where}: file", None, "the name of a trace")
        return tuple(told)

    return (), each


TRACE = {"file": of_type(None, str, "the name of a trace", bool), "kind": of_type(None, str, "a text"),
         "seed": of_type(None, int, "a whole number"), "length": of_type(None, int, "a whole number")}
OBJECTIVE = {"variable": texts(("stream_error_rms",), "the name of a variable, or a list", bool),
             "reference": texts((), "a record, or a list of records", bool),
             "direction": word("minimize", "maximize"), "budgets": some_budgets(),
             "worst": texts((), "some of " + ", ".join(PARTS), PARTS.__contains__)}
KEYS = {
    "base": texts(), "budgets": some_budgets(), "vary": of_type({}, dict, "a table"),
    "trials": count(256, 1), "group": count(32, 1), "seed": count(0),
    "start": texts(), "beside": texts(), "objective": (None, lambda found, _: found),
    "traces": {"search": traces(), "report": traces(),
               "apart": texts(APART, "some of " + ", ".join(APART), APART.__contains__)},
    "sampler": {"kind": word("tpe", "random", "nsga2"),
                "startup": count(64, 1),   # candidates at random before the sampler learns
                "population": count(0)},   # of nsga2; 0: the group
    "pruner": {"kind": word("none", "median", "percentile", "halving"),
               "startup": count(32, 1),    # finished candidates before any is given up
               "percentile": of_type(50.0, float, "a number in (0, 100)", lambda x: 0 < x < 100),
               "layers": some_layers(())},   # a first look at these layers of the first text
    "replay": {"wo_steps": of_type(None, int, "a whole number"), "layers": some_layers(None),
               "importance": of_type(None, str, "a text"), "scope": of_type(None, str, "a text"),
               "horizon": of_type(None, int, "a whole number"), "seed": of_type(None, int, "a whole number")},
}


def table(given: Any, keys: Mapping[str, Any], where: str) -> SimpleNamespace:
    """A table of the file as its keys say."""
    if not isinstance(given, Mapping):
        raise wrong(where, given, "a table")
    for name, found in given.items():
        if name not in keys:
            raise UsageError(f"{where}: unknown key {name} = {show(found)}")
    told = {}
    for name, one in keys.items():
        place = f"{where}: {name}"
        if isinstance(one, Mapping):
            told[name] = table(given.get(name, {}), one, place)
        else:
            default, read_one = one
            told[name] = read_one(given[name], place) if name in given else default
    return SimpleNamespace(**told)


# ---- the file ----

def read(given: str | PathLike | Mapping[str, Any]) -> SearchConfig:
    """Reads and checks the file of a search, or the same as a dictionary."""
    document, where, folder = given, "search", Path()
    if not isinstance(given, Mapping):
        where, folder = str(Path(given)), Path(given).parent
        try:
            if not Path(given).exists():
                raise DataError(f"{where}: no such file")
            document = tomllib.loads(read_text(given))
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{where}: not TOML: {error}") from None
    if "policy" in document:
        raise UsageError(f"{where}: found [[policy]], the table of a sweep; expected base and "
                         "[vary] (kvsim sweep runs this file)")
    found = SearchConfig(path=where, **vars(table(document, KEYS, where)))
    for name in ("base", "budgets", "vary"):
        if not getattr(found, name):
            raise UsageError(f"{where}: {name} is missing")
    vars(found).update(vars(vars(found).pop("traces")))
    if not found.search:
        raise UsageError(f"{where}: traces: search is missing: expected a list of traces")
    for one in (*found.search, *found.report):
        one["file"] = str(folder / one["file"])   # from that of the search's file, as in a sweep's
    found.start = found.start or found.base
    found.replay = {name: one for name, one in vars(found.replay).items() if one is not None}
    if found.pruner.layers and "kind" not in document["pruner"]:
        found.pruner.kind = "median"
    given = vars(found).pop("objective")
    several = given if isinstance(given, list) else [{"reference": found.base[0]} if given is None else given]
    found.objectives = tuple(objective_of(one, f"{where}: objective", found.budgets) for one in several)
    if not found.objectives:
        raise wrong(f"{where}: objective", given, "[objective], or several [[objective]]")
    loops = [name.split(".")[0] == LOOP for one in found.objectives for name in one.variables]
    if any(loops) and not all(loops):
        raise UsageError(f"{where}: objective: all of the closed loop, or none")
    if len(found.objectives) > 1 and found.pruner.kind != "none":
        raise UsageError(f"{where}: pruner: several objectives cannot be pruned by, expected none")
    return found


def objective_of(given: Any, where: str, budgets: tuple[str, ...]) -> Objective:
    told = vars(table(given, OBJECTIVE, where))
    one = Objective(told.pop("variable"), OR.join(told.pop("reference")), **told)
    if not one.variables:
        raise wrong(f"{where}: variable", [], "the name of a variable, or a list")
    if len(one.variables) > 1 and not one.reference:
        raise UsageError(f"{where}: reference is missing: several variables have a mean only relative to a record's")
    for budget in one.budgets:
        if budget not in budgets:
            raise UsageError(f"{where}: budgets: found {budget}, expected some of budgets, {', '.join(budgets)}")
    return one


# ---- its texts ----

# As traces of generated texts are named: kind, longest prompt in tokens, seed.
NAME = re.compile(r"(?P<kind>.+)_(?P<length>\d+)_(?P<seed>\d+)")


@dataclass(frozen=True)
class Text:
    """A trace by its content: the digest, and what its text is of."""

    file: str
    digest: str
    model: str
    prompt: int     # entries n
    tokens: int     # N
    kind: str | None = None
    seed: int | None = None
    length: int | None = None   # as the text was ordered, else n

    @property
    def name(self) -> str:
        return Path(self.file).stem


def text_of(given: Mapping[str, Any]) -> Text:
    """Opens a trace to see what it is; what the search's file says of it goes before its name."""
    inspected = json.loads(run(["inspect", given["file"], "--json"]))
    told = {"length": inspected["prompt_len"]}
    if name := NAME.fullmatch(Path(given["file"]).stem):
        told = {"kind": name["kind"], "seed": int(name["seed"]), "length": int(name["length"])}
    told |= {what: value for what, value in given.items() if value is not None}
    return Text(digest=inspected["digest"], model=inspected["model"], prompt=inspected["prompt_len"],
                tokens=inspected["total_len"], **told)


def check_apart(searched: Sequence[Text], aside: Sequence[Text], apart: Iterable[str]) -> None:
    """Refuses texts set aside that are not apart from every one that is searched.

    The same content, or within one list the same content twice, is refused whatever `apart` says. A text may be
    searched on several models; those set aside name the files of a report."""
    for other, one in (*itertools.combinations(searched, 2), *itertools.combinations(aside, 2)):
        if one.digest == other.digest or one.name == other.name and (one.model == other.model or one in aside):
            raise UsageError(f"{one.file}: the same text as {other.file}, expected texts "
                             "that differ in name and content")
    for one, other in itertools.product(aside, searched):
        if one.digest == other.digest:
            raise UsageError(f"{one.file}: set aside, but its content is that of {other.file}, which is searched")
        for what in apart:
            values = [getattr(text, what) for text in (one, other)]
            if None in values:
                raise UsageError(
                    f"{(one, other)[values.index(None)].file}: {what} of the text unknown, expected a "
                    "file named KIND_LENGTH_SEED.h5, or {file = \"...\", kind = \"...\", seed = ...}")
            if values[0] == values[1]:
                raise UsageError(f"{one.file}: set aside, but {what} is that of {other.file}, which is "
                                 f"searched: found {values[0]}, expected another {what}")
