"""Texts as people write them, continued: what lies on this machine. No chat template, no question.

Other releases of the sources have other words: the record of a trace has the digest of its text.
"""

import functools
import glob
import importlib.util
import platform
from pathlib import Path

from kvsim.errors import UsageError

from .kinds import Kind, Text

ANSWER_LINES = 60   # more than the steps of any study


def module(name: str) -> str:
    return Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8")


def topic(name: str) -> str:
    from pydoc_data import topics

    return topics.topics[name]


def place(pattern: str) -> str:
    found = sorted(glob.glob(pattern))
    if not found:
        raise UsageError(f"{pattern}: not on this machine; choose another kind of text")
    return found[-1]


def file(pattern: str) -> str:
    return Path(place(pattern)).read_text(encoding="utf-8", errors="replace")


def continued(read, name: str):
    """A builder: the first `units` lines are the prompt, those behind them the answer."""
    def build(_, units: int) -> Text:
        lines = [line.rstrip() for line in read(name).strip().splitlines()]
        if units + ANSWER_LINES > len(lines):
            raise UsageError(f"{name}: has {len(lines)} lines, too few for a prompt of {units}; "
                             "ask for fewer --prompt-tokens")
        return Text("\n".join(lines[:units]), "\n" + "\n".join(lines[units:units + ANSWER_LINES]))
    return build


def kind(name: str, meaning: str, read, names, origin) -> Kind:
    return Kind(name, f"{meaning}, continued", tuple(continued(read, one) for one in names),
                raw=True, origins=tuple(functools.partial(origin, one) for one in names))


PYTHON = f"Python {platform.python_version()} (PSF-2.0)"

KINDS = [
    kind("python", "a module of Python's library", module,
         ("heapq", "textwrap", "shlex", "fractions", "calendar", "csv"),
         lambda name: f"{name}.py of {PYTHON}"),
    kind("manual", "a chapter of Python's manual", topic,
         ("typesseq", "compound", "formatstrings", "types", "specialnames", "debugger"),
         lambda name: f"chapter {name} of the manual of {PYTHON}"),
    kind("licence", "a licence", file,
         tuple(f"/usr/share/common-licenses/{name}" for name in
               ("Artistic", "MPL-2.0", "LGPL-2.1", "GFDL-1.3", "Apache-2.0", "GPL-3")),
         lambda name: f"{place(name)} (may be copied as it stands)"),
    kind("perl", "a module of Perl's library", file,
         tuple(f"/usr/share/perl/5.*/{name}.pm" for name in
               ("Env", "FileCache", "Benchmark", "NEXT", "SelfLoader", "fields")),
         lambda name: f"{place(name)} (Artistic-1.0-Perl or GPL-1.0-or-later)"),
]
