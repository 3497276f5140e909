"""Marks, intervals and differences of policies, as the program computes them (`kvsim rank -`)."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray

from .errors import DataError
from .program import answer

#: Values of the variable `unranked` of results (docs/metrics.md 6).
RANKED, HINDSIGHT, NOTHING_LOST, SCORES_ALL_EQUAL, HOLDS_MORE, HOLDS_LESS = range(6)
ALIKE = 0.05     # how far what is held may lie from the budget, as a share of it
# Shares of 1, and numbers that are neither shares nor above 0 throughout.
SHARES = ("retained_", "represented_", "keep_rate", "span_retained", "top1_", "minmax_bound",
          "dropped_attention", "late_", "importance_cosine", "realised_")
SIGNED = ("nll_difference", "bias_index", "span_spearman", "importance_pearson", "regret",
          "log_mass", "attention_sag", "zip_scale", "locality", "drift", "key_norm")
# Measures of which more is better, and those of which neither is; of all others less is.
HIGH = ("retained_", "represented_", "keep_rate", "span_retained", "span_spearman", "compression", "decode_speedup",
        "top1_", "generated_agreement", "importance_pearson", "importance_cosine", "minmax_bound")
NEITHER = ("held_", "budget_share", "kept", "entries_", "realised_", "tied_at", "bias_index", "budget", "merge_count",
           "log_mass", "zip_scale", "attention_sag")
SQUARED = ("stream_error", "stream_perturbation")   # their mean over steps is of squares


def better(name: str) -> str:
    """'high', 'low', or 'none': which values of a measure are the good ones."""
    if name.startswith(NEITHER):
        return "none"
    return "high" if name.startswith(HIGH) else "low"


def scale_of(name: str, unit: str = "1") -> str:
    """The scale on which intervals of a measure lie: "log", "share", "count" or "plain"."""
    if name.startswith(SIGNED):
        return "plain"
    if name.startswith(SHARES):
        return "share"
    return "count" if unit == "count" else "log"


def _plain(values: Any) -> list:
    """Nested lists with None for what JSON has no number for."""
    values = np.asarray(values, np.float64)
    if values.ndim > 1:
        return [_plain(one) for one in values]
    return [float(one) if np.isfinite(one) else None for one in values]


def contest(series: Sequence, *, units: str, scale: str, more_is_better: bool = False,
            unranked: Sequence[int] = (), held: Sequence[float] = (),
            points: Sequence[Sequence[tuple[float, Sequence]]] = ()) -> dict[str, Any]:
    """Policies at one budget by one measure: `series` [policy, step or trace]. `points`: for each policy
    what it holds at its own budgets, over what this one gives, with its series there."""
    return {"series": _plain(series), "units": units, "scale": scale, "more_is_better": more_is_better,
            "unranked": [int(one) for one in unranked], "held": _plain(held),
            "points": [[{"held": _plain([share])[0], "series": _plain(own)} for share, own in policy]
                       for policy in points]}


def rank(contests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each contest `best`, and `rows` with mark, estimate and difference from the best."""
    if not contests:
        return []
    return json.loads(answer(["rank", "-"], contests))


def at_shares(points: Sequence[Sequence[tuple[float, float]]], shares: Sequence[float], scale: str) -> np.ndarray:
    """Number of each list of (share held, number) at the share beside it, between its own points
    (docs/metrics.md 6, at equal bytes); NaN where all hold more, or all less."""
    # The first policy of a contest is there to be ranked, the second is compared with it.
    answers = rank([contest(
        [[1], [np.nan]], units="traces", scale=scale, unranked=[RANKED, HOLDS_MORE], held=[1, np.nan],
        points=[[], [(held / share, [number]) for held, number in own]])
        for own, share in zip(points, shares)])
    values = [one["rows"][1]["equal_bytes"]["estimate"]["value"] for one in answers]
    return np.array([np.nan if one is None else one for one in values], float)


def alike(held: float) -> bool:
    """Is what is held what the budget gives? `held`: one over the other; NaN, unknown, is taken so."""
    return not (held > 1 + ALIKE or held < 1 - ALIKE)


def why_unranked(dataset: xarray.Dataset) -> np.ndarray:
    """[policy, budget]: `unranked` of results or losses; 0 where the file does not say."""
    return cells(dataset, "unranked", RANKED).astype(int)


def held_of_budget(dataset: xarray.Dataset) -> np.ndarray:
    """[policy, budget]: what is held over what the budget gives; NaN where the file does not say."""
    return cells(dataset, "held_of_budget", np.nan)


def cells(dataset: xarray.Dataset, name: str, absent: float) -> np.ndarray:
    """[policy, budget]: a variable of results or losses, `absent` where they lack it."""
    shape = dataset.sizes["policy"], dataset.sizes["budget"]
    if name not in dataset:
        return np.full(shape, absent)
    if set(dataset[name].dims) != {"policy", "budget"}:
        raise DataError(f"{name} has dimensions ({', '.join(map(str, dataset[name].dims))}), expected (policy, budget)")
    return dataset[name].transpose("policy", "budget").values
