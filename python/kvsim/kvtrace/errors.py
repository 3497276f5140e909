"""The one exception that a user's mistake or bad data raises, and how a tool ends on it."""

import signal
import sys
from collections.abc import Callable

from ..errors import Error
from ..plain import printable

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_BAD_DATA = 3
EXIT_INTERRUPTED = 130


class CaptureError(Error):
    """A one-line message for the user, with the exit code that the command ends with."""

    def __init__(self, message: str, exit_code: int = EXIT_BAD_DATA):
        super().__init__(message)
        self.exit_code = exit_code


def run_tool(name: str, work: Callable[[], None]) -> int:
    """Runs a tool's work; an error becomes one line on standard error and an exit code."""
    # As with Ctrl-C, so that temporary files are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        work()
    except Error as error:
        print(printable(f"{name}: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (RuntimeError, OSError, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        print(printable(f"{name}: {reason}"), file=sys.stderr)
        return EXIT_FAILURE
    return 0
