"""Runs the program `kvsim`: its errors become exceptions, its progress a bar.

The program is a process of its own, so that Python's lock is free while it works and Ctrl-C ends it
cleanly; the results come back through the file that it writes."""

import contextlib
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from .commands import COMMANDS, HERE, environment
from .errors import Error, UsageError, error_of
from .plain import near
from .progress import Progress

Function = TypeVar("Function", bound=Callable)
# The program's progress with --progress json: {"progress": 0.37, "what": "..."}.
PROGRESS = '{"progress":'


class KvsimWarning(UserWarning):
    """A note of the program while it works, for instance that it left a policy out."""


#: Names in messages of files that nobody has named, by path.
_called: dict[str, str] = {}


@contextlib.contextmanager
def exchange() -> Iterator[str]:
    """A folder for files that go to the program or come from it, as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="kvsim-") as folder:
        try:
            yield folder
        finally:
            for path in [one for one in _called if folder in one]:
                del _called[path]


def call(path: str | os.PathLike, name: str) -> None:
    """From now on messages say `name` where they would say the path of a temporary file."""
    _called[str(path)] = name


def readable(line: str) -> str:
    """A line of the program without paths of temporary files and without the command's name."""
    for path, name in sorted(_called.items(), key=lambda one: -len(one[0])):
        line = line.replace(path, name)
    line = re.sub("^kvsim(?: [a-z-]+)?: ", "", line).removesuffix("; see --help")
    # Advice in the words of Python.
    return re.sub(r"--(overwrite|save-keep|per-head|fragility|pool)\b",
                  lambda found: found[1].replace("-", "_") + "=True", line.replace("--no-markup", "markup=False"))


@contextlib.contextmanager
def in_words_of_python() -> Iterator[None]:
    """Errors of a command as those of this package."""
    try:
        yield
    except Error as error:
        raise error_of(error.exit_code, readable(str(error))) from None


def find_program(given: str | None = None) -> str:
    """The program of this package, or of the clone it is in. KVSIM_BIN, or --kvsim, names another."""
    named = given or os.environ.get("KVSIM_BIN")
    places = (HERE / "bin", HERE.parents[1] / "build", *(one / "bin" for one in HERE.parents[3:4]))
    for one in (named,) if named else (place / "kvsim" for place in places):
        found = shutil.which(one)
        if found:
            return found
    if given:
        raise UsageError(f"{given}: no such program (--kvsim)")
    raise Error(f"{named}: no such program (KVSIM_BIN)" if named else
                "the program kvsim is not here: pip install kvsim, or build the clone "
                "(scripts/quickstart.sh)")


def _listen(stream, bar: Progress) -> list[str]:
    """Reads standard error to its end: progress goes to the bar, the rest comes back."""
    lines = []
    for line in stream:
        line = line.rstrip("\n")
        if line.startswith(PROGRESS):
            told = json.loads(line)
            bar.show(told["progress"], told["what"])
        elif line:
            lines.append(line)
    return lines


def _end(process: subprocess.Popen) -> None:
    """As with Ctrl-C: the program removes its temporary files."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _word(given: object) -> str:
    try:
        return os.fspath(given)
    except TypeError:
        raise UsageError(f"found {given!r:.60}, expected the path of a file") from None


def command(arguments: Sequence[str | os.PathLike]) -> list[str]:
    """The words that start a command, of the program or of the package."""
    words = list(map(_word, arguments))
    if words[0] in COMMANDS:
        return [sys.executable, "-P", "-m", __package__, *words]
    return [find_program(), *words]


def pass_through(arguments: Sequence[str | os.PathLike]) -> int:
    """Runs a command that speaks for itself, and returns its exit status. An interrupt goes to it."""
    with subprocess.Popen(command(arguments)) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            return process.wait()


def run(arguments: Sequence[str | os.PathLike], progress: bool | None = None) -> str:
    """Runs a command to its end and returns what it printed.

    `progress`: show a bar (True), none (False), or one where somebody looks (None). Raises Error
    with the program's line; notes become warnings of the kind KvsimWarning."""
    variables = environment()
    if arguments[0] not in COMMANDS:   # a command of the package finds its Python by itself
        variables.setdefault("KVSIM_PYTHON", sys.executable)
    printed: list[str] = []
    with contextlib.closing(Progress(progress)) as bar, subprocess.Popen(
            [*command(arguments), *(["--progress=json"] if bar.draws else [])],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables,
            text=True, encoding="utf-8", errors="replace") as process:
        reader = threading.Thread(target=lambda: printed.append(process.stdout.read()))
        reader.start()
        try:
            lines = _listen(process.stderr, bar)
            process.wait()
        except BaseException:
            _end(process)
            raise
        finally:
            reader.join()
    said = [readable(line) for line in lines]
    if process.returncode == 0:
        for line in said:
            if not line.endswith(" written"):
                warnings.warn(line, KvsimWarning, stacklevel=3)
        return "".join(printed)
    if process.returncode == 130:
        raise KeyboardInterrupt
    if process.returncode < 0:
        raise Error(f"the program was ended by {signal.Signals(-process.returncode).name}")
    raise error_of(process.returncode, said[-1] if said else f"status {process.returncode}")


def answer(arguments: Sequence[str | os.PathLike], document: object) -> str:
    """Text that the program prints when `document` comes to its standard input as JSON."""
    done = subprocess.run([find_program(), *arguments], input=json.dumps(document),
                          capture_output=True, text=True, encoding="utf-8", errors="replace")
    if done.returncode:
        lines = done.stderr.splitlines() or [f"status {done.returncode}"]
        raise error_of(done.returncode, readable(lines[-1]))
    return done.stdout


def version() -> str:
    """Of the program, "0.1.0"."""
    return run(["--version"], progress=False).split()[1]


def with_options(known: Mapping[str, object]) -> Callable[[Function], Function]:
    """Shows options that a function takes as `**given`, with their defaults, to whoever asks for its signature:
    `help`, notebooks, editors."""
    def show(function: Function) -> Function:
        told = inspect.signature(function)
        own = [one for one in told.parameters.values() if one.kind is not one.VAR_KEYWORD]
        function.__signature__ = told.replace(parameters=[*own, *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in known.items() if name not in told.parameters)])
        return function

    return show


def check_options(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuses names that a command has no options of."""
    for name in given:
        if name not in known:
            raise UsageError(f"{name}: no such option{near(name, known)}")


def options(**given: object) -> list[str]:
    """Keyword arguments as options of a command: None and False are left out, lists repeat.

    >>> options(wo_steps=16, save_keep=True, metric=["risk", "drift"], seed=None)
    ['--wo-steps=16', '--save-keep', '--metric=risk', '--metric=drift']"""
    words = []
    for name, value in given.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            words.append(option)
        elif isinstance(value, (list, tuple)):
            words += [f"{option}={one}" for one in value]
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    return words
