"""Budgets as somebody types them, and their one text: that of the program (docs/policies.md 3)."""

import re
from decimal import Decimal

from .errors import UsageError


def parse_budget(typed: object, where: str = "--budget") -> tuple[float, bool]:
    """(value, is it a count?): with `.` or `%` it is a ratio in (0, 1], else a count of entries."""
    text = str(typed).strip()
    written = re.fullmatch(r"\+?(\d+\.?\d*|\.\d+)(%?)", text, re.ASCII)
    number = Decimal(written[1]) / (100 if written[2] else 1) if written else Decimal(0)
    is_count = "." not in text and "%" not in text
    if number <= 0 or not is_count and number > 1:
        raise UsageError(f"{where} {text}: expected a ratio such as 0.5 or 50%, or a count of tokens")
    return float(number), is_count


def budget_text(typed: object, where: str = "--budget") -> str:
    """
    >>> [budget_text(one) for one in (".2", "0.20", "20%", "100%", "0512")]
    ['0.2', '0.2', '0.2', '1.0', '512']"""
    value, is_count = parse_budget(typed, where)
    return str(int(value)) if is_count else f"{Decimal(repr(value)):f}"


def find_budget(typed: object, labels: list[str]) -> int | None:
    """Where a budget stands among labels of a results file, which may be as they were typed."""
    if str(typed) in labels:
        return labels.index(str(typed))
    wanted = budget_text(typed)
    return next((at for at, label in enumerate(labels) if budget_text(label) == wanted), None)
