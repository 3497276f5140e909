"""Scores of a Python function on every layer of a trace, as the file that the program reads.

They take the way of the preset `external`: every other stage of the policy, every budget and every
measure is the program's own.
"""

import hashlib
import inspect
import json
import traceback
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path

import numpy as np

from kvsim.errors import DataError, Error, UsageError
from kvsim.trace import Layer, Trace

#: A policy's own part: the prompt's layer to scores [Hkv, n], higher is kept; [Hq, n] with
#: granularity=query.
ScoreFunction = Callable[[Layer], np.ndarray]
SCHEME = "python:"


def function_name(function: ScoreFunction) -> str:
    """What records and figures call a function."""
    name = getattr(function, "__name__", type(function).__name__)
    if not name.isidentifier():
        raise UsageError(f"{name}: a function without a name; give one: "
                         "kvsim.Policy(function, name=...)")
    return name


def source_of(function: ScoreFunction) -> str:
    """The text of a function, for the record of a run; "" when Python does not have it."""
    try:
        return getattr(function, "kvsim_source", None) or inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def describe(function: ScoreFunction, name: str) -> dict[str, str]:
    """What the results' record says of a function."""
    source = source_of(function)
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return {
        "name": name,
        "file": Path(file).name,
        "source": source,
        "sha256": hashlib.sha256(source.encode()).hexdigest(),
        "numpy": np.__version__,
    }


def where(error: BaseException, function: ScoreFunction) -> str:
    """File and line of the innermost frame that is the user's, "my_file.py:12"."""
    code = getattr(function, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if code is not None and one.filename == code.co_filename]
    if not own:
        own = [one for one in frames if Path(one.filename) != Path(__file__)] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else function_name(function)


def score_layer(function: ScoreFunction, name: str, layer: Layer) -> np.ndarray:
    """Calls the function on one layer and checks what it gives: float [Hkv or Hq, n], finite."""
    try:
        scores = function(layer)
        if hasattr(scores, "detach"):
            scores = scores.detach().cpu().float().numpy()
        scores = np.asarray(scores)
    except Error:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise Error(f"{where(error, function)}: {name}(layer {layer.index}): "
                    f"{type(error).__name__}{': ' if reason else ''}{reason}") from error
    entries = layer.keys.shape[1]
    shapes = dict.fromkeys(((layer.keys.shape[0], entries), (layer.queries.shape[0], entries)))
    if scores.shape not in shapes:
        expected = " or ".join(f"[{heads}, {n}]" for heads, n in shapes)
        raise DataError(f"{name}(layer {layer.index}): wrong shape: found {list(scores.shape)}, "
                        f"expected {expected}")
    if scores.dtype.kind not in "fiub":
        raise DataError(f"{name}(layer {layer.index}): not numbers: found {scores.dtype}")
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype(np.float32 if scores.dtype == np.float16 else np.float64)
    finite = np.isfinite(scores)
    if not finite.all():
        head, entry = np.argwhere(~finite)[0]
        found = "NaN" if np.isnan(scores[head, entry]) else "infinity"
        raise DataError(f"{name}(layer {layer.index}): {found} at [{head}, {entry}], expected "
                        "finite scores")
    return scores


def write_scores(
    function: ScoreFunction,
    name: str,
    trace: Trace,
    target: str | PathLike,
    layers: Iterable[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes the scores of the chosen layers (all), and what the function is, into `target`."""
    import h5py

    chosen = trace.layers if layers is None else list(layers)
    with h5py.File(target, "w") as file:
        for done, index in enumerate(chosen):
            file[f"layers/{index}/score"] = score_layer(function, name, trace.layer(index).prompt())
            if progress:
                progress(done + 1, len(chosen))
        text = json.dumps(describe(function, name))
        file.create_dataset("function", data=[text], dtype=h5py.string_dtype("utf-8"))
