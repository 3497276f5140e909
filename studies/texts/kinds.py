"""A generated text, and the table of kinds that scripts pick from."""

import random
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ASK = "\0"   # in the prompt of a builder: where the question begins


def data_of(module: str) -> dict[str, Any]:
    """The words of a module: NAME.toml beside NAME.py."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass
class Text:
    """A marked-up prompt and the written answer that is teacher-forced after it."""

    prompt: str
    answer: str


@dataclass
class Kind:
    """A row of the table: a builder `(rng, units)` makes the text, `units` sets its length.

    The same seed and number of units always give the same text; more units give a longer prompt.
    Where parts are written by hand there are several builders, which the seeds take in turn.
    Kinds of one `stream` draw the same numbers, so that they differ in nothing but their point.
    An `agnostic` kind is compressed before the question is known (DefensiveKV 4.1). A `raw` kind is
    continued as it stands: no markers, no chat template. Of a `long` kind the answer grows with the
    units, not the prompt. `origins` says of each builder where its text comes from.
    """

    name: str
    meaning: str
    builders: tuple[Callable[[random.Random, int], Text], ...]
    stream: str = ""
    agnostic: bool = False
    raw: bool = False
    long: bool = False
    origins: tuple[Callable[[], str], ...] = ()

    def numbers(self, seed: int) -> random.Random:
        """The random numbers of a seed; every stream draws its own."""
        return random.Random(f"{self.stream or self.name}/{seed}")

    def origin(self, seed: int) -> str:
        """Where the text of a seed comes from: a file and its licence, or the generator."""
        if not self.origins:
            return f"written for kvsim (Apache-2.0): kind {self.name}, seed {seed}"
        return self.origins[seed % len(self.origins)]()

    def before_question(self) -> "Kind":
        """These texts, compressed where the question begins."""
        return replace(self, name=f"{self.name}_agnostic", stream=self.stream or self.name,
                       meaning=f"{self.meaning}; compressed before the question", agnostic=True)


def chat(user: str, system: str = "", compress: bool = False) -> str:
    """A prompt of a system turn, if any, and a user turn, with <compress/> between if wanted."""
    first = f'<turn role="system">{system}</turn>\n' if system else ""
    middle = "<compress/>\n" if compress else ""
    return f'{first}{middle}<turn role="user">{user}</turn>\n'


def text_of(kind: Kind, seed: int, units: int) -> Text:
    """The text of a kind."""
    build = kind.builders[seed % len(kind.builders)]
    text = build(kind.numbers(seed), units)
    return replace(text, prompt=text.prompt.replace(ASK, "<compress/>" if kind.agnostic else ""))
