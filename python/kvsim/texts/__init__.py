"""Texts for larger traces, written by script in words of our own. A new kind is a row of KINDS."""

from . import counting, found, messages, orders, program, reports
from .kinds import Kind, Text, text_of

KINDS: dict[str, Kind] = {
    kind.name: kind
    for module in (reports, messages, program, counting, orders, found)
    for kind in module.KINDS
}

__all__ = ["KINDS", "Kind", "Text", "text_of"]
