"""Scores of a Python function on every layer of a trace, as the file that the program reads.

They take the way of the preset `external`: every other stage of the policy, every budget and every
measure is the program's own, which finds the scores in the folder of its option --scores. For
`--policy python:FILE.py:FUNCTION` it hands over to the command `score` here; `kvsim.replay` does the
same for functions that it is given. The file of scores says what computed them."""

import contextlib
import hashlib
import importlib.util
import inspect
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path

import numpy as np

from .errors import DataError, Error, UsageError
from .kvtrace.writer import as_array
from .program import call, pass_through
from .progress import Progress
from .tool import Parser, run_tool
from .trace import Layer, Trace
from .whole import create_hdf5, whole_file

#: A policy's own part: the prompt's layer to scores [Hkv, n], higher is kept; [Hq, n] with granularity=query.
ScoreFunction = Callable[[Layer], np.ndarray]
SCHEME = "python:"
#: Functions that have been scored, by title and digest of their source: `explain` scores again.
known_functions: dict[tuple[str, str], ScoreFunction] = {}


def function_name(function: ScoreFunction) -> str:
    """Name of a function in records and figures."""
    name = getattr(function, "__name__", type(function).__name__)
    if not name.isidentifier():
        raise UsageError(f"{name}: a function without a name; give one: kvsim.Policy(function, name=...)")
    return name


def source_of(function: ScoreFunction) -> str:
    """The text of a function, for the record of a run; "" when Python does not have it."""
    try:
        return getattr(function, "kvsim_source", None) or inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def describe(function: ScoreFunction, title: str) -> dict[str, str]:
    """Description of a function in the results' record; `title` is what they call the policy."""
    source = source_of(function)
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return {
        "title": title, "name": title.rpartition(":")[2], "file": Path(file).name, "source": source,
        "sha256": hashlib.sha256(source.encode()).hexdigest(), "numpy": np.__version__}


def _said(error: BaseException) -> str:
    """An exception in one line."""
    reason = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{': ' if reason else ''}{reason}"


def where(function: ScoreFunction, error: BaseException | None = None) -> str:
    """File and line of a function, of what it wraps, or of the class of a callable object: "my_file.py:12"; of an
    error the line at which it left that file."""
    inner = inspect.unwrap(getattr(function, "func", function))
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    if code is None:
        return function_name(function)
    frames = traceback.extract_tb(error.__traceback__) if error else []
    line = [code.co_firstlineno, *(one.lineno for one in frames if one.filename == code.co_filename)][-1]
    # A cell of a notebook lies in a temporary file that nobody knows.
    cell = "ipykernel_" in code.co_filename or code.co_filename.startswith("<ipython")
    return f"notebook cell, line {line}" if cell else f"{Path(code.co_filename).name}:{line}"


def score_layer(function: ScoreFunction, name: str, layer: Layer) -> np.ndarray:
    """Calls the function on one layer and checks what it gives: float [Hkv or Hq, n], finite."""
    try:
        given = function(layer)
        scores = as_array(given)
    except Error:
        raise
    except (Exception, SystemExit) as error:   # sys.exit would end the command without a word
        raise Error(f"{where(function, error)}: {name}(layer {layer.index}): {_said(error)}") from error
    entries = layer.keys.shape[1]
    called = f"{where(function)}: {name}(layer {layer.index})"
    shapes = dict.fromkeys(((layer.keys.shape[0], entries), (layer.queries.shape[0], entries)))
    if scores.shape not in shapes:
        expected = ", or with granularity=query ".join(f"[{heads}, {n}]" for heads, n in shapes)
        found = list(scores.shape) if scores.dtype != object else f"a {type(given).__name__}"
        raise DataError(f"{called}: wrong shape: found {found}, expected {expected}")
    if scores.dtype.kind not in "fiub":
        raise DataError(f"{called}: not numbers: found {scores.dtype}")
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype(np.float32 if scores.dtype == np.float16 else np.float64)
    finite = np.isfinite(scores)
    if not finite.all():
        head, entry = np.argwhere(~finite)[0]
        found = "NaN" if np.isnan(scores[head, entry]) else "infinity"
        raise DataError(f"{called}: {found} at [{head}, {entry}], expected finite scores")
    return scores


def score_files(functions: Mapping[str, ScoreFunction], trace: Trace, folder: str | PathLike,
                layers: Iterable[int] | None = None,
                progress: Callable[[float, str], None] | None = None) -> None:
    """Writes the scores of functions, by what the results call the policy, on the chosen layers (all) of
    a trace, and what each function is: into the folder where the program finds them (its option
    --scores)."""
    import h5py

    chosen = trace.layers if layers is None else list(layers)
    for number, (title, function) in enumerate(functions.items()):
        name, inside = title.rpartition(":")[2], title.removeprefix(SCHEME).replace("%", "%25").replace("/", "%2F")
        target = Path(folder) / inside / f"{trace.path.stem}.h5"
        about = describe(function, title)
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as temporary, create_hdf5(temporary) as file:
            for done, index in enumerate(chosen, 1):
                file[f"layers/{index}/score"] = score_layer(function, name, trace.layer(index).prompt())
                if progress:
                    progress((number + done / len(chosen)) / len(functions),
                             f"{trace.path.name}: {name}: layer {done} of {len(chosen)}")
            file.create_dataset("function", data=[json.dumps(about)], dtype=h5py.string_dtype("utf-8"))
        call(target, f"the scores of {name}")
        known_functions[(title, about["sha256"])] = function


def load_function(title: str) -> ScoreFunction:
    """The function of "python:FILE.py:NAME". Runs the file."""
    file, colon, name = title.removeprefix(SCHEME).rpartition(":")
    path = Path(file)
    if not path.is_file() or not name.isidentifier():
        found = ("a file without the name of a function" if not colon and name.endswith(".py") else
                 "no file with this function: only the Python process that replayed it knows one by its name "
                 "alone" if not colon and name else "no function is named" if not name else
                 f"no name of a function: found {name}" if not name.isidentifier() else
                 f"no such file: {file}" if file else "no file is named")
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


@contextlib.contextmanager
def printing_aside() -> Iterator[None]:
    """Prints of a function go to standard error: standard output is the command's."""
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)


def parser() -> Parser:
    p = Parser(prog="kvsim score", description="Scores functions on traces, then runs a command of "
               "the program with them: kvsim score [options] -- WORDS. The program asks for it.")
    add = p.add_argument
    add("--function", action="append", required=True, metavar="python:FILE.py:NAME")
    add("--trace", action="append", default=[], metavar="FILE")
    add("--layers", metavar="LIST", type=lambda text: [int(one) for one in text.split(",")],
        help="the model's numbers by comma (all of the trace)")
    add("--into", metavar="FOLDER", help="keep the scores there")
    return p


def main(arguments: list[str]) -> int:
    """The scores of every function on every trace, and then the command."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options, words = parser().parse_args(arguments[:split]), arguments[split + 1:]

    def work() -> int:
        with tempfile.TemporaryDirectory(prefix="kvsim-") as temporary:
            folder, told = Path(options.into or temporary), " ".join(words).replace("--progress=", "--progress ")
            progress = Progress(quiet="-q" in words or "--quiet" in words, json="--progress json" in told)
            with printing_aside():
                functions = {title: load_function(title) for title in options.function}
                for trace in options.trace:
                    with Trace(trace) as opened:
                        score_files(functions, opened, folder, options.layers, progress.show)
                progress.close()
            return pass_through([*words, f"--scores={folder}"])

    return run_tool("kvsim", work)
