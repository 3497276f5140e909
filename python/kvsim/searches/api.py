"""`kvsim search` and the same in Python: looks for a better policy among candidates of a space of records."""

import argparse
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Error, UsageError
from ..kvtrace.capture_command import number
from ..plain import csv_text, printable_lines
from ..progress import Progress
from ..tool import Parser, add_shard, run_tool
from ..units import Shard, Tell
from ..whole import write_text

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class SearchResults:
    """Findings of a search so far.

    Attributes:
        best: the best record, or with several objectives all that no other beats in every one.
        tried: candidates so far, whatever became of them.
        trials: a row per candidate: state, record, values, keys, why it was infeasible or not ranked.
        summary: what the command prints.
        report: what was measured on the texts set aside; empty without ``report=True``.
        folder: of the study."""

    best: list[str]
    tried: int
    trials: "pandas.DataFrame"
    summary: str
    report: str
    folder: Path


def search(config: str | PathLike | Mapping[str, Any], out: str | PathLike, *,
           trials: int | None = None, report: bool = False, closed_loop: bool = False,
           model: str | None = None, threads: int | None = None,
           shard: tuple[int, int] | None = None,
           tell: Callable[[str], None] | None = None) -> SearchResults:
    """Looks for policies that lose less, among records whose keys vary; goes on where it stopped.

    >>> found = search("data/searches/sample.toml", "build/search", trials=64)
    >>> found.best
    ['layer-defensivekv,smooth=none']

    Args:
        config: a file as docs/cli.md 7 describes it, or the same as a dictionary.
        out: folder of the study, made when absent; one that is there goes on.
        trials: candidates in all, instead of the number in `config`.
        report: then measure the best on the texts set aside.
        closed_loop: with `report`, also run the model with what is kept; needs PyTorch.
        model: of the closed loop; without it that of the traces.
        shard: (I, N) as one of N processes at work on the study at once: tables and figures are left
            to a call without it.
        tell: is called with a line after every group."""
    return _search(config, out, lambda line, _: tell and tell(line), trials, report, closed_loop, model, threads, shard)


def _search(config: str | PathLike | Mapping[str, Any], out: str | PathLike, tell: Tell, trials: int | None,
            report: bool, closed_loop: bool, model: str | None, threads: int | None,
            shard: Shard | None) -> SearchResults:
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError:
        raise Error("a search needs Optuna: pip install 'kvsim[search]'") from None
    from . import config as configuration
    from . import figures, summary
    from .study import Study

    read = configuration.read(config)
    if report and not read.report:
        raise UsageError(f"{read.path}: traces: report is missing: expected texts set "
                         "aside, of another kind, seed and length than those of search")
    study = Study(read, out, threads=threads, model=model)
    study.run(trials, tell, lambda one: f"{summary.counts_text(one)}; {summary.best_text(one)}")
    table = summary.trials_table(study)
    made = summary.Report(study, closed_loop) if report else None
    told = made.run() if made else ""
    text = summary.summary_text(study)
    if shard is None:
        with study.turn.held():   # of several processes that end together
            write_text(study.folder.path / "candidates.csv", csv_text(table, None))
            write_text(study.folder.path / "summary.txt", text + "\n")
            figures.write(study, made)
    return SearchResults([one.user_attrs["record"] for one in study.best()],
                         summary.counts(study)["tried"], table, text, told, study.folder.path)


# ---- the command ----

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
    add("--trials", type=number(int, 1), metavar="N", help="how many candidates in all, instead of the file's number")
    add_shard(add, "candidates are shared as they come", "summary and figures")
    add("--report", action="store_true", help="measure the best on the texts set aside, which are opened by this, once")
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
    with contextlib.closing(Progress(quiet=args.quiet, json=args.progress == "json", log="kvsim search")) as progress:
        found = _search(args.config, args.out, progress.tell, args.trials, args.report, args.closed_loop,
                        args.model, args.threads, args.shard)
    if not args.shard:
        print(printable_lines(found.summary + ("\n\n" + found.report if found.report else "")))


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    return run_tool("kvsim", lambda: run(args), "interrupted; what is finished is kept")
