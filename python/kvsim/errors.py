"""Mistakes as exceptions: one line each, as the command line says it."""

import functools
from collections.abc import Callable
from os import PathLike
from typing import Any

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class Error(Exception):
    """A mistake or bad data: `str(error)` is one line, `exit_code` that of the command."""

    exit_code = 1

    def __init__(self, line: str, exit_code: int | None = None):
        super().__init__(line)
        if exit_code is not None:
            self.exit_code = exit_code


class UsageError(Error):
    """A request that cannot be met: an unknown policy, a wrong value, an existing file."""

    exit_code = 2


class DataError(Error):
    """A file or an array is not what it should be."""

    exit_code = 3


class VerificationError(Error):
    """The outputs recomputed from a trace differ from the model's own."""

    exit_code = 4


#: Errors of h5py, numpy and json on a damaged or odd file.
_ODD = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError,
        ValueError)


def unreadable(path: str | PathLike, kind: str, error: Exception) -> DataError:
    """Error of a file that cannot be read as a `kind`: in the program's words, or else in those of `error`."""
    from .program import run

    try:
        run(["inspect", path, "-q"], progress=False)
    except Error as said:
        if isinstance(said, DataError):
            return said
    reason = " ".join(str(error).strip("\"'").split()) or type(error).__name__
    return DataError(f"{path}: not {kind}: {reason}")


def reads_file(kind: str) -> Callable:
    """For a method that reads `self.path`: whatever a damaged or odd file raises there is one line."""
    def wrapped(method: Callable) -> Callable:
        @functools.wraps(method)
        def reading(self, *args: Any, **named: Any) -> Any:
            try:
                return method(self, *args, **named)
            except Error:
                raise
            except _ODD as error:
                raise unreadable(self.path, kind, error) from None
        return reading
    return wrapped


def line_of(error: Exception) -> str:
    """An exception in one line: a file's name and what is wrong with it; else the first
    line that is not empty, since libraries like to print paragraphs."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def error_of(exit_code: int, line: str) -> Error:
    """The exception for an exit code of the program or of a tool."""
    for kind in (UsageError, DataError, VerificationError):
        if kind.exit_code == exit_code:
            return kind(line)
    return Error(line, exit_code)
