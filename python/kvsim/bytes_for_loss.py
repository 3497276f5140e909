"""The inverse of loss by bytes: the least bytes with which a policy loses no more than asked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from os import PathLike

import numpy as np
import pandas
import xarray

from .errors import UsageError

# Forms of a cache (docs/metrics.md 9), as tables name them.
FORMS = {"flattened": "bytes_flattened", "padded": "bytes_padded", "paged": "bytes_paged",
         "in place": "bytes_in_place", "peak": "bytes_peak"}


def least_cost(costs: Iterable[float], losses: Iterable[float], most: float) -> float:
    """The least cost with a loss of at most `most`: of the points, and between neighbours of which
    one is below and one above, on a line in logarithms of both. NaN where no point comes so low. A
    point that costs more than one of the same loss or less does not count."""
    before = None   # the best of those that cost less
    for cost, loss in sorted(zip(costs, losses)):
        if math.isnan(loss) or not cost > 0 or (before is not None and loss >= before[1]):
            continue
        if loss <= most:
            if before is None or loss <= 0:
                return cost
            along = math.log(before[1] / most) / math.log(before[1] / loss)
            return before[0] * (cost / before[0]) ** along
        before = cost, loss
    return math.nan


def least_bytes(results: xarray.Dataset, loop: xarray.Dataset, loss: float) -> pandas.DataFrame:
    """The least bytes with which the model loses at most `loss` nats, by policy and form of a cache.

    >>> results = kvsim.replay(trace, policies, [0.1, 0.2, 0.35, 0.5], save_keep=True)
    >>> kvsim.least_bytes(results, kvsim.closed_loop(model, results), 0.01)

    Between two budgets the bytes are read off a line in logarithms of bytes and loss.

    Args:
        results: of `replay`, which say what every policy holds.
        loop: of `closed_loop` on them, which says what the model loses (``kl_divergence_mean``).
        loss: mean KL divergence from the full cache's next-token distribution, nats.

    Returns:
        bytes, a row per policy of the loop and a column per form; NaN where no budget comes so low."""
    if isinstance(loss, bool) or not isinstance(loss, (int, float)) or not 0 < loss < math.inf:
        raise UsageError(f"loss: found {loss!r:.60}, expected nats, more than 0")
    labels = [str(one) for one in loop.budget_label.values]
    known = [str(one) for one in results.budget_label.values]
    policies = [str(one) for one in loop.policy.values]
    lacking = [*(one for one in policies if one not in results.policy.values),
               *(one for one in labels if one not in known)]
    if lacking:
        raise UsageError(f"least_bytes: the results have no {lacking[0]}, which the closed loop has")
    columns = [known.index(one) for one in labels]
    rows = {policy: {form: least_cost(results[variable].sel(policy=policy).values[columns],
                                      loop.kl_divergence_mean.sel(policy=policy).values, loss)
                     for form, variable in FORMS.items()} for policy in policies}
    return pandas.DataFrame.from_dict(rows, orient="index", columns=list(FORMS)).rename_axis("policy")


def as_text(table: pandas.DataFrame, loss: float, form: str, loop: PathLike) -> str:
    """The table for a terminal or to paste; `loop`: the file whose policies it is of."""
    from .table_text import table_text

    return table_text(
        (table / 2 ** 20).reset_index(), form, of=[loop],
        title=f"The least MiB with a loss of {loss:g} nats at most",
        notes=["between budgets by lines in logarithms; –: no budget comes so low"])


def by_policy(losses: pandas.DataFrame, loss: float) -> pandas.DataFrame:
    """Of a study's losses: the least share of the full cache's bytes, a row per model and policy.

    The median over texts, where one on which no budget comes so low needs more than any other; on
    how many texts it is reached."""
    rows = []
    for (model, policy), own in losses.groupby(["model", "policy"], sort=False):
        found = np.array([least_cost(text.bytes, text.kl, loss) for _, text in own.groupby("text", sort=False)])
        middle = float(np.median(np.where(np.isnan(found), np.inf, found)))
        rows.append({"model": model, "loss": loss, "policy": policy,
                     "bytes": middle if middle < np.inf else np.nan,
                     "reached": int((~np.isnan(found)).sum()), "texts": len(found)})
    return pandas.DataFrame(rows)
