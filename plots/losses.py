"""Losses of two spans by which policies are compared (docs/reproduction.md says what they mean).

A span's class score is the retained importance of its own entries; the loss is 1 - that score, mean
over layers. It is a proxy: nothing is generated. Of two results files, the first is of the request
that follows the directive and gives the loss of the span `directive`, the second is of the request
to leak it and gives the loss of `defense`; a single file gives both. Where the spans have other
names, they are the first and the last of the trace.
"""

from dataclasses import dataclass

import numpy as np

from plots import load

SCORE = "span_retained_importance"
CONSTRAINTS = ("constrain", "whitelist")   # keys that make a record a variant of another


@dataclass
class Losses:
    """The two losses, [policy, budget] each, and what they are losses of."""

    policies: list
    budgets: np.ndarray
    labels: tuple
    values: tuple

    def points(self, policy):
        """[budget, 2] of one policy."""
        index = self.policies.index(policy)
        return np.stack([values[index] for values in self.values], axis=1)


def scores(results):
    """[policy, budget, span]: class scores, mean over the layers that have one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        values = results.variable(SCORE, "policy", "budget", "span", "layer")
        defined = ~np.isnan(values)
        return np.where(defined, values, 0).sum(axis=3) / defined.sum(axis=3)


def of(several):
    """The losses of one or two results files; NotMeasured for anything else."""
    if len(several) > 2:
        raise load.NotMeasured("losses are drawn from one results file or two: that of the "
                               "request that needs the directive, then that of the leak request")
    for results in several:
        if not results.has(SCORE):
            raise load.NotMeasured(f"{results.path}: no variable {SCORE}")
    spans = load.spans(several)
    if len(spans) < 2:
        raise load.NotMeasured(f"{several[0].path}: fewer than two labelled spans")
    first, second = several[0], several[-1]
    if first.budgets.size != second.budgets.size or np.any(first.budgets != second.budgets):
        raise load.Missing(f"{first.path} and {second.path} have different budgets")
    policies = load.common_policies(several)
    chosen = [("directive", spans[0]), ("defense", spans[-1])]
    values, labels = [], []
    for results, (wanted, other) in zip((first, second), chosen):
        present = [str(span) for span in results.data["span"].values]
        span = wanted if {"directive", "defense"} <= set(present) else other
        if span not in present:
            raise load.Missing(f"{results.path}: no span {span}")
        table = 1 - scores(results)[..., present.index(span)]
        values.append(table[[results.policies.index(policy) for policy in policies]])
        labels.append(f"loss of {span}" + (f", {results.name}" if len(several) > 1 else ""))
    return Losses(policies, first.budgets, tuple(labels), tuple(values))


def variants(results):
    """{base record: [records that add a whitelist or a constraint to it]}."""
    known = load.parameters(results)

    def rest(record):
        return {key: value for key, value in known[record].items()
                if key not in CONSTRAINTS and not key.startswith(("fair_", "debias_"))}

    def plain(record):
        return all(known[record].get(key, "none") == "none" for key in CONSTRAINTS)

    records = [record for record in results.policies if record in known]
    return {base: found for base in records if plain(base)
            and (found := [one for one in records if not plain(one) and rest(one) == rest(base)])}


def change(record, base):
    """What a variant adds to its base, as it is typed."""
    return record.removeprefix(base).lstrip(",") or record


def debias_lambda(results, record):
    """λ of a record with constrain=debias; 0 and 1 are its unconstrained and its fair end."""
    keys = load.parameters(results).get(record, {})
    if keys.get("constrain") == "debias":
        return float(keys["debias_lambda"])
    return None
