"""Policies as Python objects: a preset with changed keys, or a function of one's own."""

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path

from . import scoring
from .errors import UsageError
from .program import options, run
from .scoring import SCHEME, ScoreFunction
from .trace import Trace


class Policy:
    """A preset, or a function that scores a layer, with keys of the record changed.

    >>> Policy("snapkv", window=64, constrain="fair").record
    'snapkv,window=64,constrain=fair'

    A function gets the prompt of one layer (:class:`kvsim.Layer`) and returns scores [Hkv, n],
    higher is kept; with ``granularity="query"`` [Hq, n]. Everything else is as for a preset:

    >>> def newest(layer):
    ...     return np.tile(layer.positions, (len(layer.keys), 1))
    >>> Policy(newest, allocate="joint", sinks=4).record
    'python:newest,allocate=joint,sinks=4'

    Args:
        what: a record such as ``"snapkv"`` or ``"snapkv:official,window=64"``, or a function.
        name: of the function in results and figures, if not its own.
        keys: changed keys, as ``kvsim.policies("snapkv")`` lists them; True and False are yes and
            no, a list is joined by ``+``."""

    def __init__(self, what: str | ScoreFunction, /, *, name: str | None = None, **keys: object):
        self.function = what if callable(what) else None
        if any(one.__module__.startswith("kvpress.") for one in type(what).__mro__):
            raise UsageError(f"{type(what).__name__}: a press of kvpress, expected a policy of kvsim: "
                             "kvsim.from_kvpress(press) makes one of it")
        if isinstance(what, type):
            raise UsageError(f"{what.__name__}: a class, expected a record, a function, or an object "
                             f"that can be called: {what.__name__}(...)")
        if self.function is None:
            title = str(what)
        else:
            self.name = name or scoring.function_name(self.function)
            if not self.name.isidentifier():
                raise UsageError(f"{self.name}: not a name of a policy, expected letters, digits and _")
            title = SCHEME + self.name
        self.title = title
        self.keys = "".join(f",{key}={_text(value)}" for key, value in keys.items())
        self.record = title + self.keys

    def __repr__(self) -> str:
        return f"<kvsim.Policy {self.record}>"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return "+".join(map(_text, value))
    return str(value)


def as_policies(given: "str | ScoreFunction | Policy | Iterable | None") -> list[Policy]:
    """One policy or several, in any of the forms that `replay` takes."""
    if given is None:
        return []
    if isinstance(given, (str, Policy)) or callable(given):
        given = [given]
    if not isinstance(given, Iterable):
        raise UsageError(f"policies: found {given!r:.60}, expected a record such as "
                         '"snapkv,window=16", a function of a layer, or several of these')
    policies = [one if isinstance(one, Policy) else Policy(one) for one in given]
    functions: dict[str, ScoreFunction] = {}
    for one in policies:
        if one.function is not None and functions.setdefault(one.title, one.function) is not one.function:
            raise UsageError(f"two functions are called {one.name}; kvsim.Policy(function, "
                             "name=...) gives one another name")
    return policies


@functools.cache
def described(record: str) -> dict:
    """Answer of `kvsim policies` about a record: `canonical`, `needs`, and the value of every key in `cells`."""
    told = json.loads(run(["policies", record, "--json"], progress=False))
    if "preset" not in told:   # a key or a kind of a stage, which `kvsim policies` explains, too
        cells = [f"{one['stage']}={one['kind']}" for one in told.get("kinds", ())]
        raise UsageError(f"{record}: not a preset of kvsim policies" + (
            f"; {cells[0]} changes one, such as snapkv,{cells[0]}" if cells else ""))
    return told["preset"] | {"cells": {one["key"]: one["value"] for one in told["preset"]["record"]}}


def answers(trace: str | PathLike, records: Sequence[str], budgets: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Of each record as typed its canonical text, and why a replay of the trace would refuse it ("")."""
    told = json.loads(run(["inspect", trace, "--json", "-q",
                           *options(policy=list(records), budget=",".join(budgets))], progress=False))
    return {one["policy"]: (one["record"], one["fault"]) for one in told["policies"]}


def choose(policy: Policy, path: Path, budgets: Sequence[str], **how: object) -> list[dict]:
    """By budget what a policy keeps of the prompt of a trace alone in its folder, {layer: bool [Hkv, n]}."""
    from .kvtrace.kept_sets import ResultsFile

    with Trace(path) as trace:
        score_files([policy], trace, path.parent)
    target = path.with_name("kept.nc")
    # Nobody reads the measures, and those with l2 are the cheapest.
    run(["replay", path, "-o", target, *options(
        policy=policy.record, scores=path.parent, budget=",".join(budgets), save_keep=True, wo_steps=1,
        importance="l2", **how)], progress=False)
    with ResultsFile(target) as results:
        return [results.sets(0, at).masks for at in range(len(budgets))]


def score_files(policies: Sequence[Policy], trace: Trace, folder: str | PathLike,
                layers: Sequence[int] | None = None,
                progress: Callable[[float, str], None] | None = None) -> None:
    """Scores every function among `policies`, those of files, too, on a trace: into the folder where
    the program finds them (its option --scores)."""
    functions: dict[str, ScoreFunction] = {}
    for one in policies:
        title = one.record.partition(",")[0]
        if one.function is not None:
            functions[title] = one.function
        elif title.startswith(SCHEME):
            functions[title] = scoring.load_function(title)
    scoring.score_files(functions, trace, folder, layers, progress)
