"""Scorers of free answers: score(answer, row) in [0, 1], and which benchmark is judged by which.

Rules are those of the benchmarks' own evaluation; normalising and F1 are SQuAD's of transformers,
ROUGE-L is that of rouge-score. A new scorer is a function here and a name in SCORERS."""

import difflib
import re
import statistics
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError, UsageError

Scorer = Callable[[str, Mapping[str, Any]], float]

_CONTROL = re.compile(r"[\x00-\x1f]")
_CHOICE = re.compile(r"answer is:? ?\(?([A-Z])\b")
# The last letter of a line, of the first line that has one.
_LETTER = re.compile(r"\b[A-D]\b(?!.*\b[A-D]\b)")


def best_of(one: Callable[[str, str], float]) -> Scorer:
    """The best score over the accepted answers."""
    return lambda answer, row: max(float(one(answer, wanted)) for wanted in row["answers"])


def first_line(answer: str) -> str:
    """The first line that is not empty."""
    return (answer.strip().splitlines() or [""])[0]


def squad(measure: str) -> Callable[[str, str], float]:
    """A measure of SQuAD, over words without case, articles and punctuation."""
    def score(answer: str, wanted: str) -> float:
        from transformers.data.metrics import squad_metrics

        return getattr(squad_metrics, measure)(wanted, answer)

    return score


def rouge_l(answer: str, wanted: str) -> float:
    """ROUGE-L (Lin, 2004), F measure."""
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(["rougeL"]).score(wanted, answer)["rougeL"].fmeasure


def named(answer: str, row: Mapping[str, Any]) -> list[bool]:
    """Which accepted answers the answer holds, whatever their case (RULER)."""
    said = _CONTROL.sub("", answer.strip()).strip().lower()
    return [one.lower() in said for one in row["answers"]]


def classification(answer: str, row: Mapping[str, Any]) -> float:
    """One over the number of classes that the first line names, where the right one is among them
    (LongBench); names that are parts of the right one do not count against it."""
    classes = row.get("all_classes")
    if classes is None or not len(classes):
        raise UsageError("--scorer classification: expected a column all_classes with the names of the classes")
    line = first_line(answer)

    def one(wanted: str) -> float:
        found = [name for name in classes if name in line and not (name in wanted and name != wanted)]
        return 1 / len(found) if wanted in found else 0.0

    return max(one(wanted) for wanted in row["answers"])


def multiple_choice(answer: str, wanted: str) -> float:
    """The letter after "answer is" (LongBench v2)."""
    found = _CHOICE.search(answer.replace("*", ""))
    return float(bool(found) and found[1] == wanted)


def letter(answer: str, wanted: str) -> float:
    """The letter from A to D that stands alone, the last one of the first line with any, or the answer's
    first character (InfiniteBench, SCBench)."""
    found = _LETTER.search(answer.strip())
    return float(bool(found) and found[0] == wanted or answer.strip()[:1] == wanted)


def right_number(answer: str, wanted: str) -> float:
    """Share of the numbers of the answer that are the right one (LongBench: counting, retrieval)."""
    right, said = re.findall(r"\d+", wanted), re.findall(r"\d+", answer)
    return said.count(right[0]) / len(said) if right and said else 0.0


def first_number(answer: str, wanted: str) -> float:
    """The first number of the answer (InfiniteBench: pass keys, numbers to find)."""
    found = re.search(r"\d+\.\d+|\d+", answer)
    if not found:
        return 0.0
    try:
        return float(found[0] == wanted or "." in found[0] + wanted and float(found[0]) == float(wanted))
    except ValueError:
        return 0.0


def boxed(answer: str, wanted: str) -> float:
    """Text in the last \\boxed{}, with the braces inside it (AIME, MATH)."""
    _, mark, rest = answer.rpartition("boxed{")
    depth, end = 1, 0
    while mark and depth and end < len(rest):
        depth += {"{": 1, "}": -1}.get(rest[end], 0)
        end += 1
    return float(bool(mark) and not depth and rest[: end - 1].strip() == wanted.strip())


def code_line(answer: str, wanted: str) -> float:
    """Similarity of the first line of code to the right one (LongBench: completion of code)."""
    lines = (one for one in answer.lstrip().split("\n") if not any(mark in one for mark in ("`", "#", "//")))
    return difflib.SequenceMatcher(None, next(lines, ""), wanted).ratio()


SCORERS: dict[str, Scorer] = {
    "exact": best_of(squad("compute_exact")), "f1": best_of(squad("compute_f1")), "rouge-l": best_of(rouge_l),
    "string-all": lambda answer, row: statistics.fmean(named(answer, row)),
    "string-any": lambda answer, row: float(any(named(answer, row))), "classification": classification,
    "choice": best_of(multiple_choice), "letter": best_of(letter), "number": best_of(right_number),
    "first-number": best_of(first_number), "boxed": best_of(boxed), "code": best_of(code_line),
}
# Rules for the first line alone, where a benchmark lets an answer end with its line.
SCORERS |= {f"{name}-line": lambda answer, row, scorer=SCORERS[name]: scorer(first_line(answer), row)
            for name in ("f1", "rouge-l")}
#: Scorer -> tasks of benchmarks that are judged by it.
BENCHMARKS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("benchmarks.toml").read_text(encoding="utf-8"))


def scorer_of(task: str) -> str | None:
    """Name of the scorer by which a known benchmark judges a task, or None. The suffix -e is that of
    LongBench-E; a class of lengths may stand behind it."""
    name = re.sub(r"[-_]e( \S+)?$", "", task.lower())
    return next((scorer for scorer, names in BENCHMARKS.items() for one in names
                 if name == one or (one.endswith("*") and name.startswith(one[:-1]))), None)


def load_scorer(name: str) -> Scorer:
    """A scorer by name, or a function of the user's as FILE.py:FUNCTION."""
    if name in SCORERS:
        return SCORERS[name]
    if not name.rpartition(":")[0].endswith(".py"):
        raise UsageError(f"--scorer: found {name}, expected one of {', '.join(SCORERS)}, or FILE.py:FUNCTION")
    from ..scoring import SCHEME, load_function, where

    own = load_function(SCHEME + name)

    def score(answer: str, row: Mapping[str, Any]) -> float:
        try:
            found = own(answer, dict(row))
        except Exception as error:
            raise DataError(f"{where(own, error)}: {name}: {type(error).__name__}: {error}") from error
        try:
            value = float(found)
        except (TypeError, ValueError):
            value = -1.0
        if not 0 <= value <= 1:
            raise DataError(f"{name}: found {found!r}, expected a score from 0 to 1")
        return value

    return score
