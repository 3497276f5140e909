"""`kvsim search`: looks for a better policy among candidates of a space of records."""

import argparse

from ..errors import UsageError
from ..plain import printable_lines
from ..tool import Parser, run_tool, say, shard

ABOUT = """\
Asks for candidates in groups, replays each group at once over the texts to search on, and keeps
everything in the folder STUDY: run again after a stop it goes on, and several processes may work on
one study. --report measures the best on texts set aside, which must differ in kind, seed and length,
and says how many candidates were tried (docs/cli.md 7)."""


def parser() -> Parser:
    p = Parser(prog="kvsim search", description=ABOUT)
    add = p.add_argument
    add("config", metavar="SEARCH.toml", help="the search")
    add("-o", "--out", metavar="STUDY", required=True, help="folder of the study, made when absent")
    add("--trials", metavar="N", help="how many candidates in all, instead of the file's number")
    add("--shard", type=shard, metavar="I/N", help="as one of N processes that work on the study at "
        "once; the same command without --shard then writes the summary")
    add("--report", action="store_true",
        help="measure the best on the texts set aside, which are opened by this, once")
    add("--closed-loop", action="store_true",
        help="with --report: also run the model itself with what is kept; needs PyTorch")
    add("--model", metavar="NAME|FOLDER", help="of --closed-loop and of searches by the closed loop "
        "(that of the traces)")
    p.add_general_options()
    return p


def run(args: argparse.Namespace) -> None:
    if args.closed_loop and not args.report:
        raise UsageError("search: --closed-loop without --report: expected kvsim search SEARCH.toml "
                         "-o STUDY --report --closed-loop")
    if args.shard and args.report:
        raise UsageError("search: one share does not know the best: found --shard with --report, "
                         "expected --report without --shard when all shards are over")
    if args.trials is not None and not (args.trials.isdigit() and int(args.trials) > 0):
        raise UsageError(f"--trials: found {args.trials}, expected a whole number >= 1")
    from .api import search

    found = search(args.config, args.out, trials=args.trials and int(args.trials),
                   report=args.report, closed_loop=args.closed_loop, model=args.model,
                   threads=args.threads, shard=args.shard, tell=None if args.quiet else say)
    if not args.shard:
        print(printable_lines(found.summary + ("\n\n" + found.report if found.report else "")))


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    return run_tool("kvsim", lambda: run(args), "interrupted; what is finished is kept")
