"""Losses of two spans by which policies are compared (studies/reproduction/pitfalls.md says what they mean).

A span's class score is the retained importance of its own entries; the loss is 1 - that score, mean
over layers. It is a proxy: nothing is generated. A single results file gives both losses. Otherwise
there are two files per text, one after the other: that of the request that follows the directive,
for the loss of the span `directive`, and that of the request to leak it, for the loss of `defense`.
Where the spans have other names, they are the first and the last of the trace.

These losses look at the spans' own entries. What a constraint does to the rest of the cache stands
beside them: the stream error, and the divergence of the model's own predictions where the closed
loop of the trace was given. A constraint *wrecks* the cache at a budget where its stream error is
more than WRECK times that of the policy it constrains, and above that of `random` if the files have
it: losses of spans mean nothing there.
"""

from dataclasses import dataclass

import numpy as np
import xarray

from ...plain import counted
from .. import load, statistics, style

SCORE = "span_retained_importance"
CONSTRAINTS = ("constrain", "whitelist")   # keys that make a record a variant of another
WRECK = 2   # times the stream error of the unconstrained policy
STREAM, LOOP = "stream error", "KL divergence, closed loop (nats)"
# Of two files per text: what the model loses on the answer that follows the directive, and on that
# to the request to leak it.
REQUESTS = ("KL divergence, directive (nats)", "KL divergence, leak (nats)")
CROSS = {"color": "black", "linestyle": "", "marker": "x", "markersize": 5.5, "zorder": 5}
RANDOM = {"color": style.REFERENCE, "linestyle": ":", "marker": ""}


@dataclass
class Losses:
    """The two losses and the damage done to the cache as a whole, all over (text, policy, budget),
    and what they are losses of."""

    labels: tuple
    values: xarray.DataArray   # with a first dimension `loss`
    texts: list
    damage: dict               # by measure
    random: str | None         # record of the random policy

    def __post_init__(self):
        self.policies = self.values.policy.values.tolist()
        self.budgets = self.values.budget.values

    def wrecked(self, policy, base):
        """[text, budget]: where `policy` wrecks the cache that `base` leaves usable."""
        if STREAM not in self.damage:
            return xarray.zeros_like(self.points(policy).isel(loss=0, drop=True), bool)
        error = self.damage[STREAM]
        found = error.sel(policy=policy) > WRECK * error.sel(policy=base)
        if self.random is not None:
            found &= error.sel(policy=policy) > error.sel(policy=self.random)
        return found

    @property
    def wreck_rule(self):
        """Meaning of the marks in figures."""
        if STREAM not in self.damage:
            return "stream error was not measured, so that a wrecked cache does not show"
        beside = " and that of random" if self.random is not None else ""
        looped = min((int(self.damage[one].notnull().any(["policy", "budget"]).sum())
                      for one in (LOOP, *REQUESTS) if one in self.damage), default=len(self.texts))
        fewer = f"; closed loops of {looped} of the texts" if looped < len(self.texts) else ""
        return f"×: wrecked, stream error above {WRECK} times that of the policy itself{beside}{fewer}"

    def points(self, policy):
        """[loss, text, budget] of one policy."""
        return self.values.sel(policy=policy, drop=True)

    @property
    def described(self):
        """The texts by name, or their number where there are many."""
        if len(self.texts) > 1:
            return f"{counted(len(self.texts), 'text')}, means over them" + \
                (" (errors and divergence: geometric)" if self.damage else "")
        return ", ".join(self.texts[0])


def scores(results):
    """[policy, budget, span]: class scores, mean over the layers that have one."""
    return results.variable(SCORE, "policy", "budget", "span", "layer").mean("layer")


def of(several):
    """The losses of one results file, or of two per text; NotMeasured for anything else."""
    if len(several) > 1 and len(several) % 2:
        raise load.NotMeasured("losses are drawn from one results file, or two per text: that of "
                               "the request that needs the directive, then that of the leak "
                               f"request; here are {len(several)}")
    for results in several:
        results.need(SCORE, kind=load.NotMeasured)
    spans = span_names(several)
    if len(spans) < 2:
        raise load.NotMeasured(f"{several[0].path}: fewer than two labelled spans")
    for other in several[1:]:
        if other.budgets.tolist() != several[0].budgets.tolist():
            raise load.Missing(f"{several[0].path} and {other.path} have different budgets")
    policies = load.common_policies(several)
    pairs = list(zip(several[::2], several[1::2])) or [(several[0], several[0])]
    values, labels = [], []
    for k, (wanted, other) in enumerate((("directive", spans[0]), ("defense", spans[-1]))):
        requests = [pair[k] for pair in pairs]
        span = wanted if all({"directive", "defense"} <= set(one.spans) for one in requests) else other
        for one in requests:
            if span not in one.spans:
                raise load.Missing(f"{one.path}: no span {span}")
        values.append(load.stacked([1 - scores(one).sel(policy=policies, span=span, drop=True)
                                    for one in requests], "text"))
        labels.append(f"loss of {span}" + (f", {requests[0].name}" if len(several) == 2 else ""))
    texts = [list(dict.fromkeys(results.name for results in pair)) for pair in pairs]
    known = load.parameters(several[0])
    random = next((one for one in policies if one in known and unconstrained(known[one])
                   and known[one].get("indicator") == "random"), None)
    return Losses(tuple(labels), load.stacked(values, "loss").sortby("budget"), texts,
                  damage(pairs, policies), random)


def damage(pairs, policies):
    """{measure: [text, policy, budget]}; only what is there. The stream error is the mean over the
    requests of a text, the closed loop stands for each request."""
    def of_texts(table, requests):
        texts = [load.stacked([table(pair[k]).sel(policy=policies) for k in requests], "request")
                 .mean("request", skipna=False) for pair in pairs]
        return load.stacked(texts, "text").sortby("budget")
    found = {}
    if all(results.has("stream_error_rms") for pair in pairs for results in pair):
        found[STREAM] = of_texts(
            lambda results: results.variable("stream_error_rms", "policy", "budget"), (0, 1))
    both = any(pair[0] is not pair[1] for pair in pairs)
    for k, measure in enumerate(REQUESTS if both else (LOOP,)):
        if any(pair[k].loops for pair in pairs):
            found[measure] = of_texts(lambda results: results.loop_losses, (k,))
    return found


def over_texts(damage, record):
    """[budget]: one measure of damage of a record, geometric mean over the texts that have it; NaN
    where it was not measured, as closed loops are run at some budgets only."""
    return geometric(damage.dropna("text", how="all").sel(policy=record), "text", skipna=False)


def geometric(values, dim, **options):
    """Mean of errors or losses over a dimension, as over traces everywhere."""
    mean = np.exp(np.log(np.maximum(values, statistics.LEAST)).mean(dim, **options))
    return xarray.where((values <= 0).all(dim), 0, mean)


def draw_damage(axes, lost, base, others, variants):
    """A panel per measure of the whole cache, geometric mean over texts, of {record: look}: `others`, random
    and `variants` of a policy with crosses where they wreck half of the texts."""
    random = {lost.random: RANDOM} if lost.random else {}
    for ax, damage in zip(axes, lost.damage.values()):
        for record, look in (others | random | variants).items():
            own = over_texts(damage, record)
            measured = own.dropna("budget")
            ax.plot(measured.budget, measured, **look)
            if record in variants:
                bad = lost.wrecked(record, base).mean("text") >= 0.5
                ax.plot(own.budget[bad], own[bad], **CROSS)
        ax.set_ylim(bottom=0)


def name_rows(axes, lost, first):
    """Labels of the rows: of the first, and of the measures of the whole cache."""
    for ax, label in zip(axes[:, 0], [first, *lost.damage]):
        ax.set_ylabel(label.replace(" (", "\n("))


def unconstrained(keys):
    return all(keys.get(key, "none") == "none" for key in CONSTRAINTS)


def variants(results, lost):
    """{base record: [records that add a whitelist or a constraint to it]}, of policies that have losses."""
    found = {}
    for records in load.alike(results, lambda key: key in CONSTRAINTS
                              or key.startswith(("fair_", "debias_"))):
        own = {record: unconstrained(keys) for record, keys in records.items() if record in lost.policies}
        found |= {base: [one for one in own if not own[one]] for base in own if own[base]}
    return {base: found[base] for base in lost.policies if found.get(base)}


def change(record, base):
    """Cells that a variant adds to its base, as typed."""
    return record.removeprefix(base).lstrip(",") or record


def span_names(several):
    """Names of the labelled spans of all files, in the order in which they come."""
    for results in several:
        if not results.spans:
            raise load.NotMeasured(f"{results.path}: no labelled spans")
    return list(dict.fromkeys(span for results in several for span in results.spans))


def front(points):
    """Which rows of (loss, loss) have no other row that is nowhere worse and somewhere better."""
    points = np.asarray(points, np.float64)
    below = (points[None] <= points[:, None]).all(axis=2)
    better = (points[None] < points[:, None]).any(axis=2)
    return ~(below & better).any(axis=1) & ~np.isnan(points).any(axis=1)
