"""Benchmarks in a study: every question of a file is answered with the full cache and with every
policy's, and a scorer judges.

    DIR/benchmarks/NAME-QUESTION.jsonl   its first line says which file, scorer and sample; then a line
                                         for each question with the answers of all policies

Unlike the built-in tasks every question counts, also those that the full cache answers wrong."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas

from ..errors import UsageError
from ..kvtrace.markup import Conversation, Turn
from ..kvtrace.prompt import render, tokenize
from ..plain import counted
from ..plots import statistics
from ..tasks.benchmark import Benchmark, Row, read_benchmark, said, sampled
from ..tasks.scorers import SCORERS, load_scorer, scorer_of
from ..units import Lines, check_same
from .folder import TABLES, Folder
from .table import ALL, sorted_by
from .tasks import Context, answers_of, records_of


@dataclass
class Sheet:
    """A benchmark, asked with the question known or unknown, and its file."""

    benchmark: Benchmark
    head: dict     # first line of the file: way to ask, sample, and the scorer of each task
    lines: Lines
    known: list[Context] = field(default_factory=list)   # what a question passes on to the next one
    left_out: dict[str, list[int]] = field(default_factory=dict)   # why -> rows

    @property
    def name(self) -> str:
        return f"{self.head['benchmark']}-{self.head['question']}"

    def left(self, records: list[str], _) -> Iterator[tuple[Row, list[int], int, int]]:
        """Rows with the places of the records that they lack; how many are done, and of how many."""
        if not self.lines.read():
            self.lines.add(self.head)
        have: dict[str, set[str]] = {}
        for line in self.lines.read()[1:]:
            have.setdefault(line["row"], set()).update(records_of(line))
        for done, row in enumerate(self.benchmark.rows):
            lacks = [i for i, one in enumerate(records) if one not in have.get(row.name, ())]
            if lacks:
                yield row, lacks, done, len(self.benchmark.rows)
        self.known.clear()

    def ask(self, folder: Folder, row: Row, loaded, settings, policies: list[str]) -> None:
        try:
            self.lines.add(ask(folder, self, row, loaded, settings, policies, self.known))
        except TooLong as error:
            self.left_out.setdefault(str(error), []).append(row.number)

    def warning(self) -> str:
        """What was left out, in words; "" where nothing was."""
        unread = self.benchmark.left_out
        rows = {one.number for one in self.benchmark.rows}.union(*unread.values())
        left_out = unread | self.left_out
        return f"{self.name}: left out of {counted(len(rows), 'row')}: {said(left_out)}" if left_out else ""


def sheets(folder: Folder, paths: list[str], question: list[str] | None, fraction: float, seed: int,
           scorers: list[str] | None) -> list[Sheet]:
    """The sheets of files, each with each way to ask. `scorers`: NAME for the tasks of no known
    benchmark, and TASK=NAME for one task."""
    told = dict(one.rpartition("=")[::2] for one in scorers or ())   # "": for those that nothing else judges
    for name in told.values():
        load_scorer(name)
    found: dict[str, Sheet] = {}
    needed: set[str] = set()
    for path in paths:
        one = read_benchmark(path)
        known = {row.task: scorer_of(row.task) or scorer_of(one.name) for row in one.rows}
        needed |= {*known, *("" for task, name in known.items() if not (name or task in told))}
        one.rows = sampled(one.rows, fraction, seed)
        if not one.rows:
            raise UsageError(f"--fraction {fraction:g}: no row of {path} is left")
        names = {row.task: told.get(row.task) or known[row.task] or told.get("") for row in one.rows}
        unknown = [task for task, name in names.items() if name is None]
        if unknown:
            raise UsageError(f"{path}: no scorer is known for {', '.join(unknown)}: name one by "
                             f"--scorer [TASK=]NAME: {', '.join(SCORERS)}, or FILE.py:FUNCTION")
        for way in question or ["unknown"]:
            head = {"benchmark": one.name, "question": way, "digest": one.digest,
                    "fraction": fraction, "seed": seed, "scorers": names}
            sheet = Sheet(one, head, Lines(folder.benchmarks / f"{one.name}-{way}.jsonl"))
            if sheet.name in found:
                raise UsageError(f"--tasks: two files are called {one.name}")
            check_same(sheet.lines.path, next(iter(sheet.lines.read()), head), head)
            found[sheet.name] = sheet
    for task in told:
        if task and task not in needed:
            raise UsageError(f"--scorer {task}={told[task]}: no such task: found "
                             f"{', '.join(sorted(needed - {''})) or 'none'}")
        if task not in needed:
            raise UsageError(f"--scorer {told[task]}: no task needs it, all are of known benchmarks: "
                             f"TASK={told[task]} replaces the rule of one")
    return list(found.values())


class TooLong(Exception):
    """A question that the model has no place for."""


def ask(folder: Folder, sheet: Sheet, row: Row, loaded, settings, policies: list[str], known: list[Context]) -> dict:
    """The line of a question: the full cache's answer, and those of every policy and budget. `known`
    passes on from one question to the next what they share."""
    conversation = row.conversation(sheet.head["question"])
    raw = getattr(loaded.tokenizer, "chat_template", None) is None
    if raw:   # the texts one after the other
        turns = conversation.turns
        conversation = Conversation([Turn(None, "".join(one.text for one in turns), [], turns[0].compress_at)])
    longest = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    length = len(tokenize(loaded.tokenizer, render(loaded.tokenizer, conversation, raw)).ids)
    if longest and length + row.tokens > longest:
        raise TooLong(f"longer than the model's {longest} tokens")
    judge = load_scorer(sheet.head["scorers"][row.task])
    found = answers_of(folder, sheet.name, conversation, raw, row.tokens, loaded, settings, policies,
                       lambda answer: judge(answer, row.asked()), known=known)
    return {"model": loaded.name, "row": row.name, "prompt": row.prompt, "task": row.task,
            "answers": list(row.answers), **found}


def outcomes(folder: Folder) -> pandas.DataFrame:
    """A row for every question, policy and budget that has run."""
    rows = []
    for path in sorted(folder.benchmarks.glob("*.jsonl")):
        head, *lines = Lines(path).read() or [{}]
        rows += [{**line, **one, **head, "score": float(one["score"]), "full": float(line["score"])}
                 for line in lines if "benchmark" in head and "outcomes" in line for one in line["outcomes"]]
    found = pandas.DataFrame(rows, columns=["model", "benchmark", "task", "question", "row", "prompt",
                                            "policy", "budget", "score", "full", "same"])
    return found.drop_duplicates(["model", "benchmark", "question", "row", "policy", "budget"], keep="last")


def wilson(score: np.ndarray, prompt: np.ndarray) -> tuple[float, float]:
    """The interval of a mean score whose questions come in clusters, the prompts: with as many questions
    as would have the variance between clusters (n_eff = m(1 - m)/V, at most their number where scores
    are 0 or 1)."""
    mean, count = score.mean(), len(set(prompt))
    sums = pandas.Series(score - mean).groupby(prompt).sum().to_numpy()
    variance = count / max(count - 1, 1) * (sums ** 2).sum() / len(score) ** 2
    n = mean * (1 - mean) / variance if variance > 0 else float(count)
    return statistics.wilson(mean, min(n, len(score)) if np.isin(score, (0, 1)).all() else n)


def scores(found: pandas.DataFrame) -> pandas.DataFrame:
    """A row per model, benchmark, task, way to ask, budget and policy."""
    every = pandas.concat([found, found.assign(task=ALL)]) if len(found) else found
    rows = []
    for keys, own in every.groupby(["model", "benchmark", "task", "question", "budget", "policy"], sort=False):
        low, high = wilson(own.score.to_numpy(), own.prompt.to_numpy())
        rows.append([*keys, own.score.mean(), low, high, own.full.mean(), own.same.mean(), len(own),
                     own.prompt.nunique()])
    return sorted_by(pandas.DataFrame(rows, columns=list(TABLES["scores.csv"])),
                     ["model", "benchmark", "task", "question", "budget", "score"], falling=True)


def score_tests(found: pandas.DataFrame) -> pandas.DataFrame:
    """All pairs of policies at each budget, over the questions that both answered."""
    rows = []
    for keys, own in found.groupby(["model", "benchmark", "question", "budget"], sort=False):
        by_row = own.pivot(index="row", columns="policy", values="score")
        prompt = own.drop_duplicates("row").set_index("row").prompt
        pairs = []
        for a, b in itertools.combinations(by_row.columns, 2):
            both = (by_row[a] - by_row[b]).dropna()
            of_prompt = both.groupby(prompt[both.index]).mean()
            pairs.append([*keys, a, b, both.mean(), statistics.chance(of_prompt.to_numpy()), False, len(of_prompt)])
        tested = [i for i, one in enumerate(pairs) if one[7] == one[7]]
        for i, apart in zip(tested, statistics.holm([pairs[i][7] for i in tested])):
            pairs[i][8] = bool(apart)
        rows += pairs
    return pandas.DataFrame(rows, columns=list(TABLES["score_tests.csv"]))


