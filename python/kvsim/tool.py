"""How a command that is written in Python reads its options, prints and ends: as those of the
program do."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable
from itertools import pairwise

from .errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, Error, line_of
from .plain import printable


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong. An option without a value in its place is wrong."""

    def parse_known_args(self, args=None, namespace=None):
        words = list(sys.argv[1:] if args is None else args)
        for option, value in pairwise(["", *words, "-"]):
            bare = re.fullmatch("(--?[a-z][a-z-]*)(=?)", option)
            if bare and (bare[2] or not value):
                self.error(f"{bare[1]}: its value is empty")
        return super().parse_known_args(words, namespace)

    def error(self, message: str):
        self.exit(EXIT_USAGE, printable(f"{self.prog}: {message}; see --help") + "\n")

    def format_help(self) -> str:
        return super().format_help().replace("usage: ", "Usage: ", 1)


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
