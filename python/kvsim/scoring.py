"""Scores of a Python function on every layer of a trace, as the file that the program reads.

They take the way of the preset `external`: every other stage of the policy, every budget and every
measure is the program's own. The program runs this file for `--policy python:FILE.py:FUNCTION`;
`kvsim.replay` calls what is here for functions that it is given. Either way the file of scores says
what computed them, and the program names its results after that.
"""

import hashlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path

if __name__ == "__main__":
    # Run by its path: the package is the folder that this file is in.
    sys.path[0] = str(Path(__file__).absolute().parents[1])

import numpy as np

from kvsim.errors import DataError, Error, UsageError
from kvsim.trace import Layer, Trace
from kvsim.whole import create_hdf5

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


def describe(function: ScoreFunction, title: str) -> dict[str, str]:
    """What the results' record says of a function; `title` is what they call the policy."""
    source = source_of(function)
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return {
        "title": title,
        "name": title.rpartition(":")[2],
        "file": Path(file).name,
        "source": source,
        "sha256": hashlib.sha256(source.encode()).hexdigest(),
        "numpy": np.__version__,
    }


def _said(error: BaseException) -> str:
    """An exception in one line."""
    reason = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{': ' if reason else ''}{reason}"


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
        raise Error(f"{where(error, function)}: {name}(layer {layer.index}): "
                    f"{_said(error)}") from error
    entries = layer.keys.shape[1]
    shapes = dict.fromkeys(((layer.keys.shape[0], entries), (layer.queries.shape[0], entries)))
    if scores.shape not in shapes:
        expected = ", or with granularity=query ".join(f"[{heads}, {n}]" for heads, n in shapes)
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
    title: str,
    trace: Trace,
    target: str | PathLike,
    layers: Iterable[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes the scores of the chosen layers (all), and what the function is, into `target`."""
    import h5py

    name = title.rpartition(":")[2]
    chosen = trace.layers if layers is None else list(layers)
    with create_hdf5(target) as file:
        for done, index in enumerate(chosen):
            file[f"layers/{index}/score"] = score_layer(function, name, trace.layer(index).prompt())
            if progress:
                progress(done + 1, len(chosen))
        text = json.dumps(describe(function, title))
        file.create_dataset("function", data=[text], dtype=h5py.string_dtype("utf-8"))


def load_function(title: str) -> ScoreFunction:
    """The function of "python:FILE.py:NAME". Runs the file."""
    file, _, name = title.removeprefix(SCHEME).rpartition(":")
    path = Path(file)
    if not path.is_file():
        found = "no file is named" if not file else f"no such file: {file}"
        raise UsageError(f"{title}: {found}, expected {SCHEME}FILE.py:FUNCTION")
    # Its own modules lie beside it, as when Python runs it.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{title}: {file} is no Python file, expected {SCHEME}FILE.py:FUNCTION")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UsageError(f"{file}:{error.lineno}: {type(error).__name__}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        own = [one for one in traceback.extract_tb(error.__traceback__)
               if Path(one.filename).resolve() == path.resolve()]
        raise Error(f"{file}:{own[-1].lineno if own else 1}: {_said(error)}") from None
    found = getattr(module, name, None)
    if not callable(found):
        known = [one for one, value in vars(module).items()
                 if inspect.isfunction(value) and value.__module__ == spec.name]
        raise UsageError(f"{title}: {file} has no function {name}"
                         + (f", expected one of {', '.join(known)}" if known else ""))
    return found


def main(arguments: list[str]) -> int:
    """scoring.py TRACE python:FILE.py:NAME TARGET LAYERS, as the program runs it.

    Standard output is for the program: "progress SHARE WHAT" lines, and "error TEXT" in the end.
    What the function prints goes to standard error.
    """
    trace, title, target, layers = arguments
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def tell(done: int, all_: int) -> None:
        print(f"progress {done / all_:.4f} {title}: layer {done} of {all_}", file=channel)

    try:
        with Trace(trace) as opened:
            write_scores(load_function(title), title, opened, target,
                         [int(one) for one in layers.split(",")], tell)
    except KeyboardInterrupt:
        return 130
    except (Error, OSError, MemoryError) as error:
        print(f"error {error}" if isinstance(error, Error) else f"error {title}: {_said(error)}",
              file=channel)
        return getattr(error, "exit_code", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
