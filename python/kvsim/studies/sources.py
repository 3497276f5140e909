"""The texts of a study: files, folders, pairs of prompt and answer, modules of Python's library.

A source knows its name and category at once; its tokens need the model's tokenizer."""

import importlib.util
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import DataError, UsageError
from ..kvtrace.markup import parse_text, plain_text
from ..kvtrace.model import sha256
from ..plain import read_text, told_apart

#: Modules of Python's library that are `builtin`, and their category.
BUILTIN = ("argparse", "calendar", "csv", "fractions", "heapq", "shlex", "statistics", "textwrap")
LIBRARY = "Python's library"
PROMPT, ANSWER = ".prompt.txt", ".answer.txt"
LEAST_PROMPT = 64   # tokens
CHARACTERS = 16     # per token, at most: what of a long file is read by the tokenizer


@dataclass(frozen=True)
class Source:
    """One text before it is tokens."""

    name: str
    category: str
    path: Path


@dataclass
class Passage:
    """Capture's input: a conversation, and the answer that is forced after it ("": the model's)."""

    conversation: object
    answer: str
    raw: bool
    digest: str


def sources(given: Iterable[str | Path], skip: Callable[[Path], None] = lambda path: None,
            option: str = "--texts") -> list[Source]:
    """The texts that words of an option name: `builtin`, files and folders; none twice. `skip` is told of files
    in folders that are no UTF-8 text."""
    found: list[Source] = []
    for one in map(str, given):
        if one == "builtin":
            found += [_file(Path(importlib.util.find_spec(name).origin), LIBRARY) for name in BUILTIN]
        elif Path(one).is_dir():
            for path in sorted(Path(one).rglob("*")):
                if path.name.startswith(".") or path.name.endswith(ANSWER) or not path.is_file():
                    continue
                if _is_text(path):
                    found.append(_file(path))
                else:
                    skip(path)
        elif Path(one).is_file():
            found.append(_file(Path(one)))
        else:
            raise UsageError(f"{option}: found {one}, expected builtin, a file or a folder")
    if not found:
        raise UsageError(f"{option}: no UTF-8 text in {', '.join(map(str, given))}")
    # Names are file names of the study: equal ones get numbers. The same text is taken once.
    found = list(dict.fromkeys(found))
    return [replace(one, name=name) for one, name in zip(found, told_apart(one.name for one in found))]


def _is_text(path: Path) -> bool:
    """Whether the file begins as UTF-8, without the NUL of binary files."""
    with path.open("rb") as file:
        try:
            return "\0" not in file.read(4096).decode("utf-8")
        except UnicodeDecodeError as error:
            return error.start > 4092   # a character cut in two


def _file(path: Path, category: str | None = None) -> Source:
    name = path.name.removesuffix(PROMPT) if path.name.endswith(PROMPT) else path.stem
    return Source(re.sub(r"[^\w.-]+", "-", name), category or path.resolve().parent.name or "files", path)


def passage(path: Path, tokenizer, prompt_tokens: int, steps: int) -> Passage:
    """The text of a file. `NAME.prompt.txt` is a prompt with the marks of kvsim capture, and NAME.answer.txt beside
    it its answer, else the model writes one. Any other file is continued: by NAME.answer.txt, or its first tokens
    are the prompt, the next ones the later steps."""
    text, marked = read_text(path), path.name.endswith(PROMPT)
    beside = path.with_name((path.name.removesuffix(PROMPT) if marked else path.stem) + ANSWER)
    answer = read_text(beside) if beside.is_file() else ""
    if marked or answer:
        if marked:
            answer = answer.strip()
        return Passage(parse_text(text, str(path)) if marked else plain_text(text), answer, not marked,
                       sha256((text + "\0" + answer).encode()))
    text = text.strip()[: CHARACTERS * (prompt_tokens + steps)]
    if not text:
        raise DataError(f"{path}: empty")
    places = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    begins = [begin for begin, end in places if end > begin]
    prompt = min(prompt_tokens, len(begins) - steps)
    if prompt < LEAST_PROMPT:
        raise DataError(f"{path}: found {len(begins)} tokens, expected at least "
                        f"{LEAST_PROMPT + steps} (a prompt of {LEAST_PROMPT} and --steps)")
    at = begins[prompt]
    return Passage(plain_text(text[:at]), text[at:], True, sha256(text.encode()))
