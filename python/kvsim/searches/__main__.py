"""What `kvsim search` runs."""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])   # as a script: the folder of the package

from kvsim.errors import EXIT_USAGE, Error  # noqa: E402
from kvsim.plain import printable, printable_lines  # noqa: E402
from kvsim.tool import Parser, run_tool  # noqa: E402


def parser() -> Parser:
    p = Parser(prog="kvsim search", allow_abbrev=False)
    add = p.add_argument
    add("config", metavar="SEARCH.toml")
    add("--out", required=True)
    add("--trials")
    add("--report", action="store_true")
    add("--closed-loop", action="store_true")
    add("--model")
    add("--threads", type=int)
    add("--quiet", action="store_true")
    return p


def say(line: str) -> None:
    print(printable(f"kvsim: {line}"), file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> None:
    if args.trials is not None and not (args.trials.isdigit() and int(args.trials) > 0):
        raise Error(f"--trials: found {args.trials}, expected a whole number >= 1", EXIT_USAGE)
    from kvsim.searches.api import search

    found = search(args.config, args.out, trials=args.trials and int(args.trials),
                   report=args.report, closed_loop=args.closed_loop, model=args.model,
                   threads=args.threads, tell=None if args.quiet else say)
    print(printable_lines(found.summary + ("\n\n" + found.report if found.report else "")))


if __name__ == "__main__":
    arguments = parser().parse_args()
    sys.exit(run_tool("kvsim", lambda: run(arguments), "interrupted; what is finished is kept"))
