"""How a command that is written in Python prints and ends: as those of the program do."""

import os
import signal
import sys
from collections.abc import Callable

from .errors import EXIT_FAILURE, EXIT_INTERRUPTED, Error, line_of
from .plain import printable


def put_line(line: object) -> None:
    """A line on standard output, at once."""
    try:
        print(printable(line), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise Error(f"standard output: cannot be written: {error.strerror}") from None


def _drop_output() -> None:
    """What is left to print goes nowhere, or Python would complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_tool(name: str, work: Callable[[], int | None], interrupted: str = "interrupted") -> int:
    """Runs a tool's work; an error becomes one line on standard error and an exit code."""
    # As with Ctrl-C, so that temporary files are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = work() or 0
        sys.stdout.flush()
        return status
    except Error as error:
        print(printable(f"{name}: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{name}: {interrupted}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:   # the reader is gone, as with `| head`
        _drop_output()
        return 128 + signal.SIGPIPE
    except (RuntimeError, OSError, MemoryError) as error:
        print(printable(f"{name}: {line_of(error)}"), file=sys.stderr)
        return EXIT_FAILURE
