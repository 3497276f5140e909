"""The commands of the program as functions."""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy
import pandas
import xarray

from .errors import UsageError
from .plain import several
from .policy import Policy, as_policies, score_files
from .program import call, exchange, options, run
from .progress import Progress
from .results import open_results
from .scoring import ScoreFunction
from .trace import Trace

PolicyLike = str | ScoreFunction | Policy
Budgets = str | float | int | Iterable[str | float | int]
Layers = int | Sequence[int] | str


def _budgets(given: Budgets | None) -> str | None:
    """As the program reads them: 0.2 is a ratio, 128 a count, "20%" and "0.1:0.9:0.1" as typed."""
    if given is None:
        return None
    if not (found := several(given)):
        raise UsageError("budgets: found none, expected at least one, such as 0.2 or 128")
    return ",".join(one if isinstance(one, str) else str(one) if isinstance(one, Integral)
                    else numpy.format_float_positional(one, trim="0") for one in found)


def _numbers(given: Layers | None) -> list[int] | None:
    """The layers by number; None for all, and for a text, which the program reads."""
    return None if given is None or isinstance(given, str) else several(given)


def _layers(given: Layers | None) -> str | None:
    numbers = _numbers(given)
    return given if numbers is None else ",".join(map(str, numbers))


def replay(trace: str | PathLike | Trace, policies: PolicyLike | Iterable[PolicyLike] | None = None,
           budgets: Budgets | None = None, *, layers: Layers | None = None,
           later: str | None = None, metrics: str | Iterable[str] = (), save_keep: bool = False,
           per_head: bool = False, fragility: bool = False, importance: str | None = None,
           scope: str | None = None, outlier: float | None = None, wo_steps: int | None = None,
           horizon: int | None = None, span_complement: str | Iterable[str] = (),
           seed: int | None = None, backend: str | None = None, threads: int | None = None,
           out: str | PathLike | None = None, overwrite: bool = False,
           progress: bool | None = None) -> xarray.Dataset:
    """Replays policies at several budgets and measures what later tokens lose.

    >>> results = replay("data/sample.h5", ["snapkv", my_score], [0.2, 128])
    >>> results.kvsim.summary

    Args:
        trace: a trace, or the path of one.
        policies: records (``"snapkv"``, ``"h2o,constrain=fair"``), functions ``score(layer)``, or
            :class:`Policy` objects; without any, a useful set.
        budgets: ratios (0.2, "20%") or entries per KV head (128); "0.1:0.9:0.1" is a range.
        layers: the model's numbers; all of the trace without.
        later: a probe whose tokens take the place of the trace's later ones.
        metrics: further ones, as ``kvsim replay --help`` lists them.
        save_keep: also what became of every prompt entry; `explain` and `closed_loop` need it.
        per_head: also measures of every head by itself.
        fragility: also what each query of the window sees alone.
        importance: norm of v W in the importance, "l1" or "l2".
        scope: "prompt", "evictable" or "all": entries that shares are taken over.
        outlier: steps with less retained importance are counted (0.5).
        wo_steps: steps whose output error is computed; 0 for all.
        horizon: steps ahead that score estimates predict.
        span_complement: names of spans whose complement becomes a span, too.
        out: keep the results file here, too.

    Returns:
        All measures with units and the full record of every policy (docs/results.md), in memory.

    Raises:
        Error: with the one line that the program says; :class:`UsageError` for an unknown policy
            and the like, :class:`DataError` for a bad trace."""
    chosen = as_policies(policies)
    if policies is not None and not chosen:
        raise UsageError("policies: found none, expected at least one, such as snapkv")
    opened = trace if isinstance(trace, Trace) else None
    with exchange() as folder:
        words: list[str | PathLike] = ["replay", trace]
        if any(one.function for one in chosen):
            _scores(chosen, opened or Trace(trace), folder, layers, progress)
            words.append(f"--scores={folder}")
        target = Path(out) if out is not None else Path(folder) / "results.nc"
        words += ["-o", target, *options(
            policy=[one.record for one in chosen], budget=_budgets(budgets),
            layers=_layers(layers), later=later, metric=several(metrics), save_keep=save_keep,
            per_head=per_head, fragility=fragility, importance=importance, scope=scope,
            outlier=outlier, wo_steps=wo_steps, horizon=horizon,
            span_complement=several(span_complement), seed=seed, backend=backend, threads=threads, overwrite=overwrite)]
        run(words, progress)
        return open_results(target)


def _scores(policies: Sequence[Policy], trace: Trace, folder: str | PathLike, layers: Layers | None,
            progress: bool | None) -> None:
    """Scores the functions among `policies` with a bar."""
    with contextlib.closing(Progress(progress)) as bar:
        score_files(policies, trace, folder, _numbers(layers), bar.show)


def sweep(config: str | PathLike | Mapping[str, Any], out: str | PathLike, *,
          traces: Iterable[str | PathLike | Trace] = (), backend: str | None = None,
          threads: int | None = None, overwrite: bool = False,
          progress: bool | None = None) -> list[xarray.Dataset]:
    """Replays a grid of policies, budgets, traces and seeds; resumes where it stopped.

    >>> grid = {"budgets": [64, 128], "policy": [{"preset": "restkv", "ema_alpha": [0.1, 0.3]}]}
    >>> results, = sweep(grid, "build/smoothing", traces=["data/sample.h5"])

    Functions may stand among the values of ``preset`` in a dictionary, ``{"preset": [my_score,
    "snapkv"], "sinks": [0, 4]}``; their scores are kept in the folder ``scores`` of `out`.

    Args:
        config: a TOML file as for ``kvsim sweep``, or the same as a dictionary.
        out: folder of the results files and of the finished units, made when absent.
        traces: instead of those that `config` names.

    Returns:
        One dataset per trace and seed, in the order of their names."""
    words = ["-o", out, "-q", *options(backend=backend, threads=threads, overwrite=overwrite)]
    chosen = [str(Path(one)) for one in traces]
    with exchange() as folder:
        file = Path(config) if not isinstance(config, Mapping) else None
        if file is None:
            # Functions among the presets, which the program knows by their titles.
            tables = [{**table, "preset": [Policy(one) if callable(one) else one
                                           for one in several(table.get("preset"))]}
                      if isinstance(table, Mapping) else table for table in several(config.get("policy"))]
            if functions := as_policies([one for table in tables if isinstance(table, Mapping)
                                         for one in table["preset"] if isinstance(one, Policy)]):
                scores = Path(out) / "scores"
                for one in chosen or several(config.get("traces", ())):
                    with Trace(one) as trace:
                        _scores(functions, trace, scores, config.get("layers"), progress)
                words.append(f"--scores={scores}")
                config = {**config, "policy": tables}
        run(["sweep", file or _write_config(config, Path(folder)), *words, *options(trace=chosen)], progress)
    return [open_results(one) for one in sorted(Path(out).glob("*.nc"))]


def _plain(given: Any) -> Any:
    """With paths, numbers of numpy and titles of functions as TOML has them."""
    if isinstance(given, Mapping):
        return {key: _plain(value) for key, value in given.items()}
    if isinstance(given, (list, tuple)):
        return [_plain(value) for value in given]
    if isinstance(given, (numpy.generic, numpy.ndarray)):
        return given.tolist()
    if isinstance(given, Policy):
        return given.title
    return fspath(given) if isinstance(given, PathLike) else given


def _write_config(config: Mapping[str, Any], folder: Path) -> Path:
    import tomli_w

    file = folder / "sweep.toml"
    call(file, "the sweep")
    try:
        file.write_text(tomli_w.dumps(_plain(config)), encoding="utf-8")
    except TypeError as error:
        raise UsageError(f"the sweep cannot be written as TOML: {error}") from None
    return file


def verify(trace: str | PathLike | Trace, *, tolerance: float | None = None,
           layers: Layers | None = None) -> pandas.DataFrame:
    """Recomputes the model's own attention outputs from a trace: the largest error per layer.

    Raises:
        VerificationError: when a layer differs by more than `tolerance` (1e-4 if everything is
            float32, else 1e-2).
        DataError: when the trace stores no outputs."""
    found = json.loads(run(["verify", trace, "--json", *options(tolerance=tolerance, layers=_layers(layers))]))
    return pandas.DataFrame(found["layers"]).set_index("layer")


def synth(out: str | PathLike, *, overwrite: bool = False, **given: Any) -> Trace:
    """Writes a synthetic trace with planted heavy hitters, spikes and a drifting hot spot.

    Args:
        out: the file.
        given: options of ``kvsim synth``: prompt, steps, num_layers, heads, kv_heads, head_dim,
            value_dim, hidden, dtype, queries, spans, softcap, sliding_window, sink, seed."""
    run(["synth", "-o", out, *options(overwrite=overwrite, **given)])
    return Trace(out)


def policies(name: str | None = None) -> pandas.DataFrame:
    """All presets with what they keep, where they come from and what they need of a trace.

    With the `name` of a preset or a record: its keys, with values, ranges and meanings."""
    found = json.loads(run(["policies", *([name] if name else []), "--json"]))
    if name is None:
        frame = pandas.DataFrame(found["presets"]).set_index("preset")
        frame["needs"] = frame["needs"].map("; ".join)
        return frame
    if "preset" not in found:
        raise UsageError(f"{name}: not a preset; kvsim.policies() lists them")
    return pandas.DataFrame(found["preset"]["record"]).set_index("key")


def sample() -> Path:
    """The sample trace that comes with the package: 8 layers of SmolLM2-135M, 431 + 208 tokens."""
    here = Path(__file__).resolve().parent
    for data in (here / "data", here.parents[1] / "data"):   # of a wheel, of a clone
        if (data / "sample.h5").is_file():
            return data / "sample.h5"
    raise UsageError("the sample trace is not part of this installation")
