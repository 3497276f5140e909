"""Tasks of a study: the model answers freely with every policy's cache, and a rule judges.

    DIR/tasks/NAME-QUESTION.jsonl   a line for each instance tried; one that the full cache answers
                                    right has what each policy and budget made of it

An instance is tried with the full cache first. Only where that answer is right do policies run."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas

from ..errors import DataError, UsageError
from ..kvtrace.kept_sets import ResultsFile
from ..kvtrace.markup import parse_text
from ..kvtrace.prompt import render, tokenize
from ..tasks import QUESTIONS, TASKS, Task, instance
from ..units import Lines, Tell, Unit, work_off
from .folder import TABLES, Folder
from .run import by_record, canonical_records, is_static, replay_text, unserved

#: Of a task no more instances are tried than so many times those wanted.
TRIES = 4
CACHES_AT_ONCE = 64
TASK_SEED = 0


def records_of(line: dict) -> set[str]:
    """Records that have run on what a line is of, or that its trace cannot serve."""
    return {*(one["policy"] for one in line["outcomes"]), *line.get("unserved", ())}


@dataclass(frozen=True)
class Sheet:
    """A task, asked with the question known or unknown, and its file."""

    task: Task
    question: str
    lines: Lines

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.question}"

    def tried(self) -> dict[int, set[str] | None]:
        """By number of an instance that the full cache answers right, the records that have run;
        of the others None."""
        found: dict[int, set[str] | None] = {}
        for line in self.lines.read():
            if not line["solved"]:
                found.setdefault(line["number"])
            elif (known := found.setdefault(line["number"], set())) is not None:
                known |= records_of(line)
        return found

    def left(self, records: list[str], instances: int) -> Iterator[tuple[int, list[int], int, int]]:
        """Numbers of instances with the places of the records that they lack, until enough are solved;
        how many are, and how many that is. What is added to the sheet while one goes on counts."""
        known, solved = self.tried(), 0
        for number in range(TRIES * instances):
            if solved == instances:
                return
            have = known.get(number, set())
            lacks = [] if have is None else [i for i, one in enumerate(records) if one not in have]
            if lacks:
                yield number, lacks, solved, instances
                known = self.tried()
            solved += known.get(number) is not None

    def ask(self, folder: Folder, number: int, loaded, settings, policies: list[str]) -> None:
        self.lines.add(run_instance(folder, self, loaded, settings, number, policies))

    def warning(self) -> str:
        return ""


def sheets(folder: Folder, names: list[str]) -> list[Sheet]:
    """Of words such as needle, needle-known or builtin: every task and question once."""
    every = {f"{task}-{question}": (task, question) for task in TASKS for question in QUESTIONS}
    chosen: dict[str, None] = {}
    for name in names:
        own = [one for one, (task, _) in every.items() if name in (one, task, "builtin")]
        if not own:
            raise UsageError(f"--tasks: found {name}, expected builtin, one of {', '.join(TASKS)}, "
                             "or one of them with -known or -unknown behind it")
        chosen.update(dict.fromkeys(own))
    return [Sheet(TASKS[every[one][0]], every[one][1], Lines(folder.tasks / f"{one}.jsonl")) for one in chosen]


def only_static(policies: list[str]) -> None:
    """Answers are written with kept sets: a policy that changes entries or compresses later has
    none that say it all."""
    for one in policies:
        if not is_static(one):
            raise UsageError(f"--tasks: {one} changes the cache while the model answers; only "
                             "policies that keep entries as they are, and compress once, can "
                             "answer freely")


def run_sheets(folder: Folder, chosen: list, load, settings, tell: Tell) -> dict[str, str]:
    """Does the rest of all sheets, of tasks and of benchmarks; `load()` gives the model. Those that it cannot
    be asked, such as turns without a chat template, are left out: name -> why, in one line."""
    records = canonical_records(settings.policies)
    refused: dict[str, str] = {}

    def units(sheet) -> Iterator[Unit]:
        for item, lacks, done, count in sheet.left(records, settings.instances):
            if sheet.name in refused:
                return

            def work(tell: Tell, item=item, lacks=lacks, done=done, count=count) -> None:
                tell(f"{sheet.name}: {done} of {count}", done / count)
                try:
                    sheet.ask(folder, item, load(), settings, [settings.policies[at] for at in lacks])
                except DataError as error:
                    refused[sheet.name] = str(error).splitlines()[0]

            yield work

    work_off([units(one) for one in chosen], tell)
    return refused


def run_instance(folder: Folder, sheet: Sheet, loaded, settings, number: int, policies: list[str]) -> dict:
    """The line of an instance: the full cache's answer, and those of every policy and budget where
    it is right."""
    one = instance(sheet.task, TASK_SEED, number)
    found = answers_of(folder, sheet.name, parse_text(one.prompt(sheet.question),
                                                      f"{sheet.name} {number}"),
                       one.raw, sheet.task.tokens, loaded, settings, policies,
                       lambda text: sheet.task.judge(text, one.expected), only_right=True)
    for outcome in found["outcomes"]:
        outcome["right"] = bool(outcome.pop("score"))
    return {"model": loaded.name, "number": number, "expected": one.expected,
            "solved": bool(found.pop("score")), **found}


@dataclass
class Context:
    """Leavings of a question for the next one about the same prompt: the kept sets by policy and budget,
    the pass over the prompt, and the records that its trace cannot serve, with the reasons."""

    key: tuple
    cells: list
    first: object
    unserved: dict[str, str]


def answers_of(folder: Folder, name: str, conversation, raw: bool, tokens: int, loaded, settings,
               policies: list[str], judge: Callable[[str], float], only_right: bool = False,
               known: list[Context] | None = None) -> dict:
    """Answers of the full cache (`full`, its `score`), and what every policy and budget does
    (`outcomes`), greedily, `tokens` at most; with `only_right` none where the full cache scores 0.

    Answers of builtin tasks that differ from the full cache's end where that one ends: what is right
    stands there. Elsewhere they go on to `tokens`, or to their own end. `known` holds the last Context:
    a question about the same prompt is asked without capturing and compressing it again."""
    from ..kvtrace.capture import CaptureOptions, later_tokens, no_progress
    from ..kvtrace.record import FirstPass, choose_attention

    choose_attention(loaded.model)
    asked = tokenize(loaded.tokenizer, render(loaded.tokenizer, conversation, raw))
    key = (tuple(asked.ids[: asked.prompt_len]), tuple(policies))
    context = next((one for one in known or () if one.key == key and len(asked.ids) > len(key[0])), None)
    how = CaptureOptions(steps=tokens, raw=raw, dtype=settings.dtype, probes=settings.probes)
    if context is None:
        written = later_tokens(loaded, conversation, how, no_progress)
        ids, count = written[0], written[2]
    else:
        ids = asked.ids + full_answer(loaded, asked.ids, context, tokens)
        count = len(ids) - len(asked.ids)
    full = answer_text(loaded, ids[len(ids) - count :])
    line = {"prompt_tokens": asked.prompt_len, "full": full, "score": judge(full), "outcomes": []}
    if only_right and not line["score"]:
        return line
    if context is None:
        context = captured(folder, name, conversation, how, written, loaded, settings, policies, key)
    if context.unserved:
        line["unserved"] = context.unserved
    if context.cells:
        first = context.first if context.first.ids == ids else FirstPass(
            ids, asked.prompt_len, context.first.prompt, context.first.heads)
        line["outcomes"], whole = outcomes(context.cells, loaded, first, count, judge, count if only_right else tokens)
        if known is not None:
            # Oracles know the later tokens; some models carry more than keys and values behind a prompt.
            serves = not (whole or any(one.startswith("oracle") for one in policies))
            known[:] = [context] if serves else []
    return line


def full_answer(loaded, ids: list[int], context: Context, longest: int) -> list[int]:
    """Tokens that the full cache answers behind tokens that begin with the prompt of a context."""
    from ..kvtrace.closed_loop import ClosedLoop
    from ..kvtrace.generate import end_tokens
    from ..kvtrace.record import FirstPass

    first = FirstPass(ids, context.first.prompt_len, context.first.prompt, context.first.heads)
    with ClosedLoop(loaded.model, ids, first.prompt_len, first=first) as loop:
        return loop.full_answer(longest, frozenset(end_tokens(loaded)))


def captured(folder: Folder, name: str, conversation, how, written: tuple, loaded, settings,
             policies: list[str], key: tuple) -> Context:
    """Captures a question and lets every policy and budget choose what it keeps of the prompt."""
    from ..kvtrace.capture import capture_trace

    folder.traces.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder.traces) as place:
        trace, results = Path(place) / "asked.h5", Path(place) / "kept.nc"
        first = capture_trace(loaded, conversation, how, trace, tokens=written, keep_first=True)["first"]
        refused = unserved(trace, policies, settings.budgets)
        served, cells = [one for one in policies if one not in refused], []
        if served:
            replay_text(trace, results, served, settings, metric=None)
            with ResultsFile(results) as file:
                cells = [(policy, budget, file.sets(p, b)) for p, policy in enumerate(file.policies)
                         for b, budget in enumerate(file.budget_labels)]
    return Context(key, cells, first, by_record(refused))


def answer_text(loaded, ids: list[int]) -> str:
    """Text of a free answer, which ends where the model ends it."""
    from ..kvtrace.generate import end_tokens

    ends = end_tokens(loaded)
    stop = next((i for i, one in enumerate(ids) if int(one) in ends), len(ids))
    return loaded.tokenizer.decode([int(one) for one in ids[:stop]])


def outcomes(cells: list, loaded, first, count: int, judge, longest: int) -> tuple[list[dict], bool]:
    """Answers of every policy, budget and kept sets, in `longest` tokens at most, instead of the last
    `count` tokens of the FirstPass, which are the full cache's answer. Equal caches run once. Also
    whether the prompt had to run again with every cache."""
    from ..kvtrace.closed_loop import ClosedLoop
    from ..kvtrace.generate import end_tokens

    sets = {one.digest(): one for _, _, one in cells}
    found, ends = {}, frozenset(end_tokens(loaded))
    with ClosedLoop(loaded.model, first.ids, first.prompt_len, first=first) as loop:
        for begin in range(0, len(sets), CACHES_AT_ONCE):
            part = list(sets)[begin : begin + CACHES_AT_ONCE]
            answers = loop.answers([sets[one] for one in part], len(first.ids) - count, ends, longest)
            found.update(zip(part, answers))
    told = []
    for policy, budget, one in cells:
        answer = found[one.digest()]
        text = answer_text(loaded, answer.tokens)
        told.append({"policy": policy, "budget": budget, "score": judge(text), "same": answer.same,
                     "kl": answer.kl} | ({} if answer.same else {"text": text}))
    return told, loop.whole


def answers(folder: Folder) -> pandas.DataFrame:
    """A row for every instance, policy and budget that has run."""
    rows = [{**line, **one, "task": sheet.task.name, "question": sheet.question}
            for sheet in sheets(folder, ["builtin"])
            for line in sheet.lines.read() for one in line["outcomes"]]
    return pandas.DataFrame(rows, columns=list(TABLES["answers.csv"])).drop_duplicates(
        ["model", "task", "question", "number", "policy", "budget"], keep="last")


def solved(folder: Folder) -> pandas.DataFrame:
    """Of each task how many instances were tried, and how many the full cache answers right."""
    keys = ["model", "task", "question"]
    tried = pandas.DataFrame(
        [(line["model"], sheet.task.name, sheet.question, line["number"], line["solved"])
         for sheet in sheets(folder, ["builtin"]) for line in sheet.lines.read()],
        columns=[*keys, "number", "solved"]).drop_duplicates([*keys, "number"], keep="last")
    return tried.groupby(keys, sort=False).solved.agg(tried="size", solved="sum").reset_index()
