"""Mistakes as exceptions: one line each, as the command line says it."""

import functools
import re
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


#: How the HDF5 library says that it cannot read what is there, and that nothing is there.
_UNREADABLE = re.compile(r"synchronously|iteration failed|[Cc]an't ")
_ABSENT = re.compile(r"doesn't exist|can't locate|not found")


def is_damaged(error: Exception) -> bool:
    """Does the HDF5 library say that what a file holds cannot be read?"""
    return (isinstance(error, (OSError, LookupError, RuntimeError))
            and bool(_UNREADABLE.search(str(error))) and not _ABSENT.search(str(error)))


def damaged(path: str | PathLike, expected: str) -> DataError:
    """Error of a file that was opened, but not read to its end."""
    return DataError(f"{path}: damaged: the HDF5 library cannot read all of it: expected a complete "
                     f"{expected} (HDF5)")


def reads_file(kind: str) -> Callable:
    """For a method that reads `self.path`: whatever a damaged or odd file raises there is one line
    that says it is no `kind`."""
    def wrapped(method: Callable) -> Callable:
        @functools.wraps(method)
        def reading(self, *args: Any, **named: Any) -> Any:
            try:
                return method(self, *args, **named)
            except Error:
                raise
            except _ODD as error:
                if is_damaged(error):
                    raise damaged(self.path, kind.removeprefix("a ")) from None
                reason = " ".join(str(error).strip("\"'").split()) or type(error).__name__
                raise DataError(f"{self.path}: not {kind}: {reason}") from None
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
