"""Benchmarks of a user: files whose rows are prompts with their right answers.

The columns are those of kvpress's evaluation (0.5): context, question, answer_prefix, answer,
max_new_tokens, and where they are there task and length; `answers`, as LongBench calls them, `needle`
of a needle in a haystack, and all_classes are taken, too. A row of SCBench (2024) has multi_turns
instead of question and answer: a list of {"input": question, "answer": ..., "options": ...}, which
share one context. Everything read here is somebody else's, and checked."""

import ast
import csv
import hashlib
import json
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError, UsageError
from ..kvtrace.markup import Conversation, Turn
from ..plain import counted
from . import KNOWN

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".arrow")
DEFAULT_TOKENS = 128   # where a file says no max_new_tokens
ANSWERS = ("answer", "answers", "needle")   # columns that hold the right answers; the first counts
CLASSES = ((4000, "0-4k"), (8000, "4-8k"), (float("inf"), "8k+"))   # of lengths, in LongBench-E


@dataclass(frozen=True)
class Row:
    """One question of a benchmark. `number` is that of its row in the file, from 0; a turn of several
    has `turn` from 0, and the turns before it with their right answers in `before`."""

    number: int
    task: str
    context: str
    question: str
    prefix: str
    answers: tuple[str, ...]
    tokens: int
    turn: int = 0
    before: tuple[tuple[str, str], ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.number}.{self.turn}" if self.turn or self.before else str(self.number)

    @property
    def prompt(self) -> str:
        """Digest of the context: rows that share it are one prompt when intervals are made."""
        return hashlib.sha256(self.context.encode()).hexdigest()[:16]

    def asked(self) -> dict[str, Any]:
        """Parts of the row that a scorer sees."""
        return {**self.more, "task": self.task, "context": self.context, "question": self.question,
                "answers": list(self.answers)}

    def conversation(self, question: str) -> Conversation:
        """Turns of a chat with the point of compression: behind the context, or behind the first
        question where that is known. Turns before this one stand behind it, with their answers."""
        first, rest = (self.question, ()) if not self.before else (self.before[0][0], self.before)
        text = self.context + first
        turns = [Turn("user", text, [], len(text if question == KNOWN else self.context))]
        for i, (_, answer) in enumerate(rest):
            following = rest[i + 1][0] if i + 1 < len(rest) else self.question
            turns += [Turn("assistant", answer), Turn("user", following)]
        if self.prefix:
            turns.append(Turn("assistant", self.prefix))
        return Conversation(turns)


@dataclass
class Benchmark:
    """A file's rows, in its order, and those that cannot be asked: why -> numbers of rows."""

    name: str
    digest: str
    rows: list[Row]
    left_out: dict[str, list[int]]

    def leave_out(self, why: str, number: int) -> None:
        self.left_out.setdefault(why, []).append(number)


def is_benchmark(word: str) -> bool:
    """Is a word of --tasks a file or folder, not a name?"""
    return "/" in word or word.lower().endswith(SUFFIXES) or Path(word).is_dir()


def files_of(path: Path) -> list[Path]:
    """The files of a benchmark: itself, those of a folder, or the parts of a dataset on disk."""
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise UsageError(f"{path}: found a file of another kind, expected {', '.join(SUFFIXES)}")
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path}: no such file or folder")
    # dataset_info.json and state.json are what datasets.save_to_disk writes beside the rows
    found = sorted(one for one in path.rglob("*") if one.suffix.lower() in SUFFIXES and one.is_file()
                   and one.name not in ("dataset_info.json", "state.json", "dataset_dict.json"))
    if not found:
        raise UsageError(f"{path}: no file of {', '.join(SUFFIXES)} in this folder")
    return found


def raw_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a file as they stand there."""
    kind = path.suffix.lower()
    try:
        if kind in (".parquet", ".arrow"):
            yield from _arrow_rows(path, kind)
            return
        with path.open(encoding="utf-8-sig", newline="") as file:
            if kind == ".csv":
                csv.field_size_limit(1 << 30)
                yield from csv.DictReader(file)
            elif kind == ".json":
                yield from _json_rows(file.read(), str(path))
            else:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield from _json_rows(line, f"{path}:{number}")
    except (OSError, NotImplementedError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


def _json_rows(text: str, where: str) -> Iterator[dict[str, Any]]:
    """A row, or a list of them."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    for row in found if isinstance(found, list) else [found]:
        if not isinstance(row, dict):
            raise DataError(f"{where}: found {type(row).__name__}, expected an object")
        yield row


def _arrow_rows(path: Path, kind: str) -> list[dict[str, Any]]:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: reading it needs pyarrow: pip install pyarrow") from None
    if kind == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    with pyarrow.memory_map(str(path)) as file:
        return pyarrow.ipc.open_stream(file).read_all().to_pylist()


def read_benchmark(path: str | Path) -> Benchmark:
    """All rows of a file or folder. One that cannot be asked is left out and counted; columns that no
    row has are an error that names those found."""
    path = Path(path)
    digest = hashlib.sha256()
    found = Benchmark(path.stem if path.is_file() else path.resolve().name, "", [], {})
    number = 0
    for file in files_of(path):
        digest.update(file.read_bytes())
        for raw in raw_rows(file):
            _add(found, raw, number, file)
            number += 1
    if number == 0:
        raise DataError(f"{path}: no rows")
    if not found.rows:
        raise DataError(f"{path}: none of {counted(number, 'row')} can be asked: {said(found.left_out)}")
    found.digest = digest.hexdigest()
    return found


def said(left_out: Mapping[str, list[int]]) -> str:
    """Why rows were left out, with how many and the first of them."""
    return "; ".join(f"{len(rows)} {why} (row {', '.join(map(str, rows[:3]))}"
                     f"{', ...' if len(rows) > 3 else ''})" for why, rows in left_out.items())


def _add(found: Benchmark, raw: Mapping[str, Any], number: int, file: Path) -> None:
    """The questions of a row: one, or a turn each."""
    several = "multi_turns" in raw
    if several and "context" not in raw and "input" in raw:   # SCBench has both names
        raw = {**raw, "context": raw["input"]}
    told = next((one for one in ANSWERS if one in raw), ANSWERS[0])
    columns = ("context", "multi_turns") if several else ("context", "question", told)
    missing = [one for one in columns if one not in raw]
    if missing:
        raise DataError(f"{file}: no column {', '.join(missing)}: found "
                        f"{', '.join(map(str, raw)) or 'none'}, expected {', '.join(columns)}, and "
                        "where there are any answer_prefix, max_new_tokens, task")
    context, tokens = raw["context"], raw.get("max_new_tokens")
    turns = _value(raw["multi_turns"]) if several else [{"input": raw["question"], "answer": raw[told]}]
    try:
        tokens = DEFAULT_TOKENS if tokens in (None, "") else int(tokens)
    except (TypeError, ValueError):
        tokens = 0
    for why, wrong in (("without a context", not isinstance(context, str)),
                       ("with max_new_tokens that is no count", tokens < 1),
                       ("without turns", not isinstance(turns, list) or not turns)):
        if wrong:
            found.leave_out(why, number)
            return
    rest = {name: value for name, value in raw.items() if name not in (
        "context", "question", *ANSWERS, "multi_turns", "max_new_tokens", "task")}
    default = "needle_in_haystack" if told == "needle" else found.name
    task, length = str(raw.get("task") or default), raw.get("length")
    if task.endswith(("-e", "_e")) and isinstance(length, (int, float)) and length == length:
        task += f" {next(name for limit, name in CLASSES if length < limit)}"
    before: list[tuple[str, str]] = []
    for turn, one in enumerate(turns):
        one = one if isinstance(one, Mapping) else {}
        question, answers = one.get("input", one.get("question")), accepted(one.get("answer"))
        asked = isinstance(question, str) and (several or (context + question).strip())
        if not asked or not answers:   # the turns after it would stand behind another text
            found.leave_out("with a turn without question or answer" if several else
                            "without a question" if answers else "without an answer", number)
            return
        if several:
            options = dict(zip(string.ascii_uppercase, accepted(one.get("options"))))
            question += "".join(f"\n{letter}. {option}" for letter, option in options.items())
            answers += tuple(letter for letter, option in options.items() if option in answers)
            if not turn and not context[-1:].isspace():   # SCBench's templates put it there
                question = "\n\n" + question
        found.rows.append(Row(
            number, str(one.get("task") or task), context, question, str(raw.get("answer_prefix") or ""),
            answers, tokens, turn, tuple(before), {**rest, **one} if several else rest))
        before.append((question, answers[0]))


def accepted(value: Any) -> tuple[str, ...]:
    """The accepted answers: a text, a number, or a list of them, in CSV as JSON or Python writes it."""
    value = _value(value)
    values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    return tuple(str(one) for one in values if one is not None and str(one).strip())


def _value(value: Any) -> Any:
    """A list that a text cell holds."""
    if isinstance(value, str) and value.strip().startswith("["):
        for read in (json.loads, ast.literal_eval):
            try:
                found = read(value)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if isinstance(found, list):
                return found
    return value


def sampled(rows: list[Row], fraction: float, seed: int) -> list[Row]:
    """A share of the rows of the file, chosen as kvpress's evaluation does; turns stay together."""
    if fraction >= 1:
        return rows
    import pandas

    numbers = list(dict.fromkeys(one.number for one in rows))
    chosen = set(pandas.Series(numbers).sample(frac=fraction, random_state=seed))
    return [one for one in rows if one.number in chosen]
