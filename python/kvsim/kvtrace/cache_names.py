"""Arguments of a model's forward that versions and families name differently. Its cache is
`past_key_values`, and `cache` from 5.24 on, where the older name warns and will end."""

import inspect
from collections.abc import Mapping
from typing import Any

NEW, OLD = "cache", "past_key_values"


def with_cache(model: Any, cache: Any) -> dict[str, Any]:
    """The keyword argument that gives a model a cache to go on with."""
    name = NEW if NEW in inspect.signature(model.forward).parameters else OLD
    return {name: cache}


def few_logits(model: Any, rows: int) -> dict[str, Any]:
    """The keyword argument by which a model computes only its last logits, where it knows one."""
    known = inspect.signature(model.forward).parameters
    return {"logits_to_keep": rows} if "logits_to_keep" in known else {}


def cache_in(found: Any) -> Any:
    """The cache among a module's keyword arguments, or in a model's output; None without one."""
    if not isinstance(found, Mapping):   # outputs are, too
        return None
    return found[NEW] if NEW in found else found.get(OLD)
