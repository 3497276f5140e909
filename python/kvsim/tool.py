"""How a command that is written in Python reads its options, prints and ends: as those of the program do."""

import argparse
import os
import re
import signal
import sys
import tomllib
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from .errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, Error, line_of
from .plain import near, printable

#: Forms of a table: for the terminal, and to paste.
TABLES = ("text", "md", "tex")


def add_table(add) -> None:
    """--table of a command whose `add_argument` is `add`."""
    add("--table", choices=TABLES, default="text",
        help="form of the tables: for the terminal, or Markdown or LaTeX (booktabs) to paste (text)")


def add_shard(add, what: str, rest: str) -> None:
    """--shard of a command whose units a folder keeps: `what` a shard does, the `rest` that a run of the whole writes."""
    add("--shard", type=shard, metavar="I/N",
        help=f"as one of N processes that work in the folder at once: {what}; the same command without --shard then "
             f"writes {rest}")


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong. An option without a value in its place is wrong, and so is the
    beginning of an option's name. What is said with examples behind it keeps its lines."""

    def __init__(self, prog: str, **named):
        """`prog`: "kvsim COMMAND", whose words of help.toml stand below the options."""
        words = tomllib.loads(Path(__file__).with_name("help.toml").read_text(encoding="utf-8"))
        if own := words.get(prog.removeprefix("kvsim ")):
            named["epilog"] = "\n\n".join([*filter(None, [named.get("epilog")]), own])
        if "epilog" in named or "\n" in named.get("description", ""):
            named["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, prog=prog, **named)

    def add_general_options(self) -> None:
        """Options that every command of the program takes, too."""
        add = self.add_argument
        add("--threads", metavar="N", type=int, help="threads of the program (all cores)")
        add("--progress", choices=("auto", "json"), default="auto",
            help="a bar or a line now and then, or lines of JSON for programs (auto)")
        add("-q", "--quiet", action="store_true", help="no progress, no notes")
        add("-v", "--verbose", action="store_true", help="say more on standard error")
        add("--version", action=_Version, nargs=0, help="print the version")

    def parse_known_args(self, args=None, namespace=None):
        words = list(sys.argv[1:] if args is None else args)
        for option, value in pairwise(["", *words, "-"]):
            bare = re.fullmatch("(--?[a-z][a-z-]*)(=?)", option)
            if bare and (bare[2] or not value):
                self.error(f"{bare[1]}: its value is empty")
        return super().parse_known_args(words, namespace)

    def error(self, message: str):
        unknown = re.match(r"unrecognized arguments: (-[^\s=]*)", message)
        if unknown:
            message = f"unknown option: found {unknown[1]}{near(unknown[1], self._option_string_actions)}"
        self.exit(EXIT_USAGE, printable(f"{self.prog}: {message}; see --help") + "\n")

    def format_help(self) -> str:
        return super().format_help().replace("usage: ", "Usage: ", 1)


class _Version(argparse.Action):
    """The program's version, which is the package's, too."""

    def __call__(self, parser, namespace, values, option_string=None):
        from .program import find_program

        os.execv(find_program(), ["kvsim", "--version"])


def shard(text: str) -> tuple[int, int]:
    """I/N as numbers."""
    own, _, count = text.partition("/")
    if not (own.isdecimal() and count.isdecimal() and 1 <= int(own) <= int(count)):
        raise argparse.ArgumentTypeError(f"found {text}, expected I/N with 1 <= I <= N, such as 2/8")
    return int(own), int(count)


def number_list(text: str) -> list[int]:
    """`0,5,10-15` -> [0, 5, 10, ..., 15]; ascending, no doubles."""
    numbers = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise argparse.ArgumentTypeError(f'"{part}": expected a list such as 0,5,10-15')
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(numbers)


def names(known: Iterable[str], what: str) -> Callable[[str], list[str]]:
    """The type of an option that takes names by comma."""
    def convert(text: str) -> list[str]:
        chosen = list(dict.fromkeys(text.split(",")))
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"no {what} {name!r}" + (near(name, known) or f"; known: {', '.join(known)}"))
        return chosen
    return convert


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
    """Left-over output goes nowhere, or Python would complain of it at its end."""
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
