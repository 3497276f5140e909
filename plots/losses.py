"""Losses of two spans by which policies are compared (docs/reproduction.md says what they mean).

A span's class score is the retained importance of its own entries; the loss is 1 - that score, mean
over layers. It is a proxy: nothing is generated. A single results file gives both losses. Otherwise
there are two files per text, one after the other: that of the request that follows the directive,
for the loss of the span `directive`, and that of the request to leak it, for the loss of `defense`.
Where the spans have other names, they are the first and the last of the trace.
"""

from dataclasses import dataclass

import numpy as np

from . import load

SCORE = "span_retained_importance"
CONSTRAINTS = ("constrain", "whitelist")   # keys that make a record a variant of another


@dataclass
class Losses:
    """The two losses, [text, policy, budget] each, and what they are losses of."""

    policies: list
    budgets: np.ndarray
    labels: tuple
    values: tuple
    texts: list

    def points(self, policy):
        """[text, budget, 2] of one policy."""
        index = self.policies.index(policy)
        return np.stack([values[:, index] for values in self.values], axis=2)

    @property
    def described(self):
        """The texts by name, or their number where there are many."""
        if len(self.texts) > 1:
            return f"{len(self.texts)} texts, means over them"
        return ", ".join(self.texts[0])


def scores(results):
    """[policy, budget, span]: class scores, mean over the layers that have one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        values = results.variable(SCORE, "policy", "budget", "span", "layer")
        defined = ~np.isnan(values)
        return np.where(defined, values, 0).sum(axis=3) / defined.sum(axis=3)


def of(several):
    """The losses of one results file, or of two per text; NotMeasured for anything else."""
    if len(several) > 1 and len(several) % 2:
        raise load.NotMeasured("losses are drawn from one results file, or two per text: that of "
                               "the request that needs the directive, then that of the leak "
                               f"request; here are {len(several)}")
    for results in several:
        if not results.has(SCORE):
            raise load.NotMeasured(f"{results.path}: no variable {SCORE}")
    spans = load.spans(several)
    if len(spans) < 2:
        raise load.NotMeasured(f"{several[0].path}: fewer than two labelled spans")
    for other in several[1:]:
        if other.budgets.size != several[0].budgets.size or \
                np.any(other.budgets != several[0].budgets):
            raise load.Missing(f"{several[0].path} and {other.path} have different budgets")
    policies = load.common_policies(several)
    if len(several) == 1:
        pairs = [(several[0], several[0])]
    else:
        pairs = list(zip(several[::2], several[1::2]))
    values, labels = [], []
    for k, (wanted, other) in enumerate((("directive", spans[0]), ("defense", spans[-1]))):
        named = all({"directive", "defense"} <= set(names_of(pair[k])) for pair in pairs)
        span = wanted if named else other
        values.append(np.stack([loss(pair[k], span, policies) for pair in pairs]))
        request = f", {pairs[0][k].name}" if len(several) == 2 else ""
        labels.append(f"loss of {span}{request}")
    texts = [list(dict.fromkeys(results.name for results in pair)) for pair in pairs]
    return Losses(policies, several[0].budgets, tuple(labels), tuple(values), texts)


def names_of(results):
    return [str(span) for span in results.data["span"].values]


def loss(results, span, policies):
    """[policy, budget]: 1 - class score of one span."""
    if span not in names_of(results):
        raise load.Missing(f"{results.path}: no span {span}")
    table = 1 - scores(results)[..., names_of(results).index(span)]
    return table[[results.policies.index(policy) for policy in policies]]


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
