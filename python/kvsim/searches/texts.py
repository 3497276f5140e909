"""Texts that are searched and texts that are set aside: what they are, and that they differ."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..program import run

# As kvsim make-traces names traces: kind, longest prompt in tokens, seed.
NAME = re.compile(r"(?P<kind>.+)_(?P<length>\d+)_(?P<seed>\d+)")


@dataclass(frozen=True)
class Text:
    """A trace by its content: the digest, and what its text is of."""

    file: str
    digest: str
    model: str
    prompt: int             # entries n
    tokens: int             # N
    kind: str | None
    seed: int | None
    length: int | None      # as the text was ordered, else n

    @property
    def name(self) -> str:
        return Path(self.file).stem


def text_of(given: Mapping[str, Any]) -> Text:
    """Opens a trace to see what it is; what the search's file says of it goes before its name."""
    told = json.loads(run(["inspect", given["file"], "--json"]))
    name = NAME.fullmatch(Path(given["file"]).stem)
    own = name.groupdict() if name else {}
    return Text(
        file=given["file"], digest=told["digest"], model=told["model"],
        prompt=told["prompt_len"], tokens=told["total_len"],
        kind=given.get("kind", own.get("kind")),
        seed=given.get("seed", int(own["seed"]) if own else None),
        length=given.get("length", int(own["length"]) if own else told["prompt_len"]))


def check_apart(searched: Sequence[Text], aside: Sequence[Text], apart: Iterable[str]) -> None:
    """Refuses texts set aside that are not apart from every one that is searched.

    The same content, or within one list the same content twice, is refused whatever `apart` says.
    """
    for several in (searched, aside):
        for number, one in enumerate(several):
            for other in several[:number]:
                if one.digest == other.digest or one.name == other.name:
                    raise UsageError(f"{one.file}: the same text as {other.file}, expected texts "
                                     "that differ in name and content")
    for one in aside:
        for other in searched:
            if one.digest == other.digest:
                raise UsageError(f"{one.file}: set aside, but its content is that of {other.file}, "
                                 "which is searched")
            for what in apart:
                values = [getattr(text, what) for text in (one, other)]
                if None in values:
                    raise UsageError(
                        f"{(one, other)[values.index(None)].file}: {what} of the text unknown, expected a "
                        "file named KIND_LENGTH_SEED.h5, or {file = \"...\", kind = \"...\", seed = ...}")
                if values[0] == values[1]:
                    raise UsageError(f"{one.file}: set aside, but {what} is that of {other.file}, which is "
                                     f"searched: found {values[0]}, expected another {what}")


def same_texts(before: Iterable[Mapping[str, Any]], now: Iterable[Text]) -> bool:
    """Are these the texts that a study recorded? Files may have moved; contents may not."""
    return [one["digest"] for one in before] == [one.digest for one in now]
