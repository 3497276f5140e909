"""`search`: looks for a better policy, as `kvsim search` does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pandas

from ..errors import Error, UsageError
from ..plain import csv_text
from ..whole import write_text


@dataclass(frozen=True)
class SearchResults:
    """Findings of a search so far.

    Attributes:
        best: the best record, or with several objectives all that no other beats in every one.
        tried: candidates so far, whatever became of them.
        trials: a row per candidate: state, record, values, keys, why it was infeasible or not ranked.
        summary: what the command prints.
        report: what was measured on the texts set aside; empty without ``report=True``.
        folder: of the study.
    """

    best: list[str]
    tried: int
    trials: pandas.DataFrame
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
        threads: of every replay; all cores without.
        shard: (I, N) as one of N processes at work on the study at once: tables and figures are left
            to a call without it.
        tell: is called with a line after every group.
    """
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError:
        raise Error("a search needs Optuna: pip install 'kvsim[search]'") from None
    from . import config as configuration
    from . import figures, summary
    from .report import Report
    from .study import Study

    read = configuration.read(config)
    if report and not read.report:
        raise UsageError(f"{read.path}: traces: report is missing: expected texts set "
                         "aside, of another kind, seed and length than those of search; kvsim "
                         "make-traces makes some")
    study = Study(read, out, threads=threads, model=model)
    study.run(trials, lambda one: tell and tell(
        f"{summary.counts_text(one)}; {summary.best_text(one)}"))
    table = summary.trials_table(study)
    made = Report(study, closed_loop=closed_loop, model=model, threads=threads) if report else None
    told = made.run() if made else ""
    text = summary.summary_text(study)
    if shard is None:
        with study.folder.turn.held():   # of several processes that end together
            write_text(study.folder.path / "candidates.csv", csv_text(table, None))
            write_text(study.folder.path / "summary.txt", text + "\n")
            figures.write(study, made)
    return SearchResults([one.user_attrs["record"] for one in study.best()],
                         summary.counts(study)["tried"], table, text, told, study.folder.path)
