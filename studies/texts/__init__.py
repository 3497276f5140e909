"""Texts for larger traces, written by script in words of our own.

A new kind is a module of this folder with a list `KINDS`.
"""

import importlib
import pkgutil

from .kinds import Kind, Text, text_of

KINDS: dict[str, Kind] = {
    kind.name: kind
    for module in pkgutil.iter_modules(__path__)
    for kind in getattr(importlib.import_module(f"{__name__}.{module.name}"), "KINDS", ())
    if isinstance(kind, Kind)
}

__all__ = ["KINDS", "Kind", "Text", "text_of"]
