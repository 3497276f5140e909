"""Sentences of pages that are too long to be understood at once: scripts/prose.py FILE...

A sentence has at most WORDS words, and a page at most MEAN on average. Tables, code, headings, indented
blocks and formulas between $ are no prose.
Exit code 1 when something was found.
"""

import re
import sys
from pathlib import Path

WORDS, MEAN = 30, 18
SHORT = re.compile(r"(?:\b(?:e\.g|i\.e|cf|Eq|Fig|Sec|No|al|vs)|\b[A-Z])\.$")   # no end of a sentence


def prose(page: str) -> list[str]:
    """Paragraphs and items of lists, without what is no prose."""
    page = re.sub(r"^(`{3,}).*?^\1`*$", "\n", page, flags=re.S | re.M)
    page = re.sub(r"<!--.*?-->", "", page, flags=re.S)
    page = re.sub(r"^(?:\||#|!\[|    (?! *[-*] )|<).*$", "\n", page, flags=re.M)
    page = re.sub(r"^ *(?:[-*]|\d+\.) +", "\n\n", page, flags=re.M)
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", page) if part.strip()]


def sentences(page: str) -> list[str]:
    found = []
    for part in prose(page):
        begin = 0
        for end in re.finditer(r"[.!?:][*)\"`]*\s+", part):
            if not SHORT.search(part[begin : end.start() + 1]):
                found.append(part[begin : end.end()].strip())
                begin = end.end()
        if part[begin:].strip():
            found.append(part[begin:].strip())
    return found


def complaints(name: str, page: str) -> list[str]:
    found = sentences(page)
    counts = [len(one.split()) for one in found]
    said = [f"{name}: {count} words, expected at most {WORDS}: {one}"
            for one, count in zip(found, counts) if count > WORDS]
    if counts and sum(counts) / len(counts) > MEAN:
        said.append(f"{name}: {sum(counts) / len(counts):.1f} words a sentence, expected at most {MEAN}")
    return said


def main() -> int:
    said = [line for name in sys.argv[1:]
            for line in complaints(name, Path(name).read_text(encoding="utf-8"))]
    print("\n".join(said), end="\n" if said else "")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
