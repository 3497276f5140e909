"""Tasks: instances of a prompt whose free answer a rule judges right or wrong."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

#: Is the question in the prompt when the cache is compressed?
KNOWN, UNKNOWN = "known", "unknown"
QUESTIONS = (KNOWN, UNKNOWN)


@dataclass(frozen=True)
class Instance:
    """One prompt of a task. `context` is compressed always, `question` where it is known.

    `system` is the system's turn, "" for none. A text with a `cue` is continued as it stands, without
    a chat template; the cue are its last words. `expected` is what the answer is judged by.
    """

    context: str
    question: str
    expected: str
    system: str = ""
    cue: str = ""

    @property
    def raw(self) -> bool:
        return bool(self.cue)

    def prompt(self, question: str) -> str:
        """Marked text as of `kvsim capture`. The cue, or the tokens that open the model's turn, come
        after the compression, so that the first token of the answer sees the compressed cache."""
        if self.raw:
            parts = (self.context, "<compress/>", self.question, self.cue)
            return "".join(parts if question == UNKNOWN else
                           (self.context, self.question, "<compress/>", self.cue))
        system = f'<turn role="system">{self.system}</turn>\n' if self.system else ""
        context = f"{self.context}\n\n" if self.context else ""
        if question == KNOWN:
            return f'{system}<turn role="user">{context}{self.question}<compress/></turn>\n'
        if context:
            return f'{system}<turn role="user">{context}<compress/>{self.question}</turn>\n'
        return f'{system}<compress/>\n<turn role="user">{self.question}</turn>\n'


@dataclass(frozen=True)
class Task:
    """A row of the table. `build(rng, number)` makes instance `number`, from which depth and length
    follow; `judge(answer, expected)` is True for a right answer; `tokens` an answer's, at most."""

    name: str
    meaning: str
    build: Callable[[random.Random, int], Instance]
    judge: Callable[[str, str], bool]
    tokens: int


def instance(task: Task, seed: int, number: int) -> Instance:
    """Instance `number` of a task, the same for the same seed."""
    return task.build(random.Random(f"{task.name}/{seed}/{number}"), number)


def words(text: str) -> list[str]:
    """Letters and digits of a text in lower case, split at everything else; "1,204" is 1204."""
    return re.findall(r"[^\W_]+", re.sub(r"(?<=\d),(?=\d{3})", "", text.lower()))


def holds(answer: str, expected: str) -> bool:
    """Does the answer hold the expected words, all of them and one after the other?"""
    return f" {' '.join(words(expected))} " in f" {' '.join(words(answer))} "


def names_all(answer: str, expected: str) -> bool:
    """Does the answer name every expected word, in their order?"""
    found = iter(words(answer))
    return all(word in found for word in words(expected))


def names_first(choices: tuple[str, ...]) -> Callable[[str, str], bool]:
    """Is the expected one the first of the choices that the answer names?"""
    def judge(answer: str, expected: str) -> bool:
        return [word for word in words(answer) if word in choices][:1] == [expected]

    return judge


def alike(share: float) -> Callable[[str, str], bool]:
    """Is ROUGE-L (Lin, 2004; F measure) between the answer and what is expected at least `share`?"""
    def judge(answer: str, expected: str) -> bool:
        from rouge_score import rouge_scorer

        scorer = rouge_scorer.RougeScorer(["rougeL"])
        return scorer.score(expected, answer)["rougeL"].fmeasure >= share

    return judge
