"""Texts of files that somebody else wrote, on a terminal and in CSV (docs/security.md)."""

import difflib
import itertools
import os
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import DataError

#: Right-to-left marks and overrides, line and paragraph separators: they reorder what stands beside.
_REORDER = frozenset("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")

#: Some editors begin files with it; it is no part of the text.
BYTE_ORDER_MARK = "\ufeff"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_text(path: str | os.PathLike) -> str:
    """A file in UTF-8 as text, without the byte order mark that it may begin with."""
    try:
        return Path(path).read_text(encoding="utf-8").removeprefix(BYTE_ORDER_MARK)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        found = "; it looks like UTF-16" if Path(path).read_bytes().startswith(_UTF16) else ""
        raise DataError(f"{path}: not UTF-8 at byte {error.start}{found}: save it as UTF-8") from None


def several(given: Any) -> list:
    """One or several, or none, as a list."""
    alone = isinstance(given, (str, Mapping, os.PathLike)) or not isinstance(given, Iterable)
    return [] if given is None else [given] if alone else list(given)


def counted(count: int, noun: str, several: str = "") -> str:
    """ "1 text", "2 texts"; `several` where it is not the noun with an s."""
    return f"{count} {noun if count == 1 else several or noun + 's'}"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else \
        f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"


def near(name: str, known: Iterable[str]) -> str:
    """ " (did you mean X?)" where one of the known names is like it, else nothing: first a record that
    changes a setting of it."""
    known = list(known)
    found = [one for one in known if one.startswith(f"{name},")] or difflib.get_close_matches(name, known, 1)
    return f" (did you mean {found[0]}?)" if found else ""


def told_apart(names: Iterable[str]) -> list[str]:
    """The names, equal ones with numbers: a, a-2, a-3."""
    found: list[str] = []
    for name in names:
        tries = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        found.append(next(one for one in tries if one not in found))
    return found


def printable(text: object) -> str:
    """The text with control characters as `\\x1b` and those that reorder a line as `\\u202e`."""
    return "".join(_shown(one) for one in str(text))


def printable_lines(text: str) -> str:
    """Line by line: the line ends are ours."""
    return "\n".join(map(printable, text.split("\n")))


def _shown(one: str) -> str:
    code = ord(one)
    if unicodedata.category(one) not in ("Cc", "Cs") and one not in _REORDER:
        return one
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def csv_cell(value: object) -> object:
    """A cell of a table: a text that a spreadsheet would run as a formula begins with a quote."""
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def csv_text(table, digits: str | None = "%.6g", missing: str = "") -> str:
    """A data frame as CSV whose texts no spreadsheet takes for formulas."""
    safe = table.map(csv_cell).rename(columns=csv_cell)
    return safe.to_csv(index=False, float_format=digits, na_rep=missing, lineterminator="\n")
