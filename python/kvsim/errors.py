"""Mistakes as exceptions: one line each, as the command line says it."""

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
