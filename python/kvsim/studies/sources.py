"""The texts of a study: kinds that kvsim writes or finds, files, folders, pairs of prompt and answer.

A source knows its name and category at once; its tokens need the model's tokenizer.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from .. import texts
from ..errors import DataError, UsageError
from ..kvtrace.make_traces_command import fitted, steps_of_answer
from ..kvtrace.markup import parse_text, plain_text
from ..kvtrace.model import sha256
from ..plain import read_text, told_apart

#: Kinds of `builtin`: as people write them, then written for kvsim, then compressed before the
#: question is known.
BUILTIN = ("python", "manual", "licence", "perl", "questions", "switch", "fewshot", "summary",
           "needles4", "counting", "code", "questions_agnostic", "summary_agnostic",
           "needles4_agnostic")
FOUND, WRITTEN, UNASKED = "as people write them", "written for kvsim", "question unknown"
LONG = "long answers"
PROMPT, ANSWER = ".prompt.txt", ".answer.txt"
LEAST_PROMPT = 64   # tokens
CHARACTERS = 16     # per token, at most: what of a long file is read by the tokenizer


@dataclass(frozen=True)
class Source:
    """One text before it is tokens: a kind with its seed, or a file."""

    name: str
    category: str
    kind: str = ""
    seed: int = 0
    path: Path | None = None

    @property
    def origin(self) -> str:
        """Where the text comes from, in words."""
        return texts.KINDS[self.kind].origin(self.seed) if self.path is None else str(self.path)


@dataclass
class Passage:
    """Capture's input: a conversation, and the answer that is forced after it ("": the model's)."""

    conversation: object
    answer: str
    raw: bool
    steps: int
    digest: str


def sources(given: Iterable[str | Path], seeds: Iterable[int],
            skip: Callable[[Path], None] = lambda path: None, option: str = "--texts") -> list[Source]:
    """The texts that words of an option name: `builtin`, kinds, KIND-SEED, files and folders; none twice. `skip`
    is told of files in folders that are no UTF-8 text."""
    found: list[Source] = []
    for one in map(str, given):
        if one == "builtin":
            found += _kinds(BUILTIN, seeds)
        elif one in texts.KINDS:
            found += _kinds([one], seeds)
        elif (kind := re.fullmatch(r"(.+)-(\d+)", one)) and kind[1] in texts.KINDS:
            found += _kinds([kind[1]], [int(kind[2])])
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
            raise UsageError(f"{option}: found {one}, expected builtin, a file, a folder, a kind of "
                             "kvsim make-traces --list, or KIND-SEED")
    if not found:
        raise UsageError(f"{option}: no UTF-8 text in {', '.join(map(str, given))}")
    # Names are file names of the study: equal ones get numbers. The same text is taken once.
    found = list(dict.fromkeys(found))
    return [replace(one, name=name) for one, name in zip(found, told_apart(one.name for one in found))]


def _kinds(names: Iterable[str], seeds: Iterable[int]) -> list[Source]:
    def category(name: str) -> str:
        kind = texts.KINDS[name]
        return FOUND if kind.raw else UNASKED if kind.agnostic else LONG if kind.long else WRITTEN

    return [Source(f"{name}-{seed}", category(name), name, seed)
            for name in names for seed in seeds]


def _is_text(path: Path) -> bool:
    """Whether the file begins as UTF-8, without the NUL of binary files."""
    with path.open("rb") as file:
        try:
            return "\0" not in file.read(4096).decode("utf-8")
        except UnicodeDecodeError as error:
            return error.start > 4092   # a character cut in two


def _file(path: Path) -> Source:
    name = path.name.removesuffix(PROMPT) if path.name.endswith(PROMPT) else path.stem
    return Source(re.sub(r"[^\w.-]+", "-", name), path.resolve().parent.name or "files", path=path)


def passage(source: Source, tokenizer, prompt_tokens: int, steps: int) -> Passage:
    """The text of a source, cut to the wanted number of tokens."""
    if source.path is not None:
        return _of_file(source.path, tokenizer, prompt_tokens, steps)
    kind = texts.KINDS[source.kind]
    text, conversation, prompt = fitted(kind, source.seed, tokenizer, prompt_tokens)
    return Passage(conversation, text.answer, kind.raw, steps_of_answer(source.name, prompt, steps),
                   sha256((text.prompt + "\0" + text.answer).encode()))


def _of_file(path: Path, tokenizer, prompt_tokens: int, steps: int) -> Passage:
    """`NAME.prompt.txt` is a prompt with the marks of kvsim capture, and NAME.answer.txt beside it
    its answer, else the model writes one. Any other file is continued: its first tokens are the
    prompt, the next ones the later steps."""
    text = read_text(path)
    if path.name.endswith(PROMPT):
        beside = path.with_name(path.name.removesuffix(PROMPT) + ANSWER)
        answer = read_text(beside).strip() if beside.is_file() else ""
        return Passage(parse_text(text, str(path)), answer, False, steps,
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
    return Passage(plain_text(text[:at]), text[at:], True, steps, sha256(text.encode()))
