"""The table of policies by budget: all measures of the files, ranked by the program (kvsim.ranking),
with intervals over traces, or over the steps of a single one."""

import numpy as np

from ... import ranking
from ...ranking import better
from .. import load, looks

# How the summaries over layers that the table offers are called.
MEAN, WORST, SUM = "mean over layers", "worst layer", "sum over layers"
DASH_UNIT = 1.5   # pixels
UNTOLD = ("unranked",)
FIRST = ("kl_divergence_mean", "stream_error_rms", "kl_divergence_max", "nll_difference_mean", "top1_agreement_mean",
         "generated_agreement", "stream_error:worst", "retained_importance_mean:mean", "retained_importance_min:worst",
         "retained_importance_min:mean", "outlier_count:sum", "output_error_mean:mean", "output_error_max:worst",
         "residual_error_mean:mean", "residual_error_max:worst")


def table(sources, hindsight=()):
    """The verdict as the page reads it (docs/report.md). `hindsight`: [stage, kind] of every kind
    that sees later queries, so that no star is its own."""
    several = [source.results for source in sources]
    policies = list(dict.fromkeys(one for results in several for one in results.policies))
    ratio = {label: float(value) for results in reversed(several)
             for label, value in zip(results.budget_labels(), results.budgets)}
    labels = list(dict.fromkeys(one for results in several for one in results.budget_labels()))
    names = {source.results.digest: source.name for source in reversed(sources)}
    digests = list(dict.fromkeys(results.digest for results in several))

    def placed(results, values):
        """`values` [policy, budget, ...] of one file among those of all."""
        whole = np.full((len(policies), len(labels), *values.shape[2:]), np.nan)
        whole[np.ix_([policies.index(one) for one in results.policies],
                     [labels.index(one) for one in results.budget_labels()])] = values
        return whole

    measures, found, series = {}, {}, {}
    for results in several:
        for one, values, steps in measures_of(results):
            measures.setdefault(one["id"], one)
            fill(found.setdefault(one["id"], {}), results.digest, placed(results, values))
            if steps is not None and len(digests) == 1:
                fill(series, one["id"], placed(results, steps))
    nothing = np.full((len(policies), len(labels)), np.nan)
    found = {one: np.stack([rows.get(digest, nothing) for digest in digests]) for one, rows in found.items()}
    order = sorted(measures, key=lambda one: FIRST.index(one) if one in FIRST else len(FIRST))
    defined = [one for one in order if not np.isnan(found[one]).all()]
    unranked = np.max([np.nan_to_num(placed(one, ranking.why_unranked(one.data)), nan=ranking.RANKED)
                       for one in several], axis=0).astype(int)
    for policy in {policy for results in several for policy, keys in load.parameters(results).items()
                   if any(keys.get(stage) == kind for stage, kind in hindsight)}:
        unranked[policies.index(policy)] = ranking.HINDSIGHT
    held, held_share, budget_share = (
        mean(np.stack([placed(one, ranking.cells(one.data, name, np.nan)) for one in several], -1))
        for name in ("held_of_budget", "held_share", "budget_share"))
    drawn = {policy: {"colour": look.colour, "marker": looks.MARKERS[look.marker],   # dashes in pixels
                      "dash": " ".join(f"{DASH_UNIT * part:g}" for part in looks.DASHES[look.dash])}
             for policy, look in looks.of(tuple(one for one in policies if not load.is_full(one))).items()}
    rows = ranked([(measures[one], found[one], series.get(one)) for one in defined or order],
                  unranked, held, held_share, budget_share)
    return {"policies": policies, "budgets": [{"label": one, "ratio": ratio[one]} for one in labels],
            "traces": [names[one] for one in digests], "measures": rows, "looks": drawn,
            "held": plain(held), "apart": (unranked > ranking.HINDSIGHT).tolist(), "hindsight": (unranked == ranking.HINDSIGHT).any(axis=1).tolist()}


def fill(store, key, values):
    """Files of one trace share a row: the first that has a number gives it."""
    own = store.setdefault(key, values)
    if own.shape == values.shape:
        store[key] = np.where(np.isnan(own), values, own)


def ranked(measures, unranked, held, held_share, budget_share):
    """Every measure with values, intervals and marks by policy and budget, and where a policy is not ranked for what it
    holds, with what it is at equal bytes. A measure of one trace that is no mean over steps has its values alone."""
    policies, budgets = map(range, unranked.shape)
    contests = []
    for one, values, steps in measures:
        by_steps = steps is not None and len(values) == 1
        every = np.moveaxis(steps, 1, 0) if by_steps else values.T   # [budget, policy, step or trace]
        for b in budgets:
            points = [[(held_share[p, other] / budget_share[p, b], every[other, p]) for other in budgets]
                      if unranked[p, b] in (ranking.HOLDS_MORE, ranking.HOLDS_LESS) else [] for p in policies]
            contests.append(ranking.contest(
                every[b], units="steps" if by_steps else "traces",
                scale=ranking.scale_of(one["variable"], one["unit"]),
                more_is_better=one["better"] == "high", unranked=unranked[:, b], held=held[:, b], points=points))
    answers, told = iter(ranking.rank(contests)), []
    for one, values, steps in measures:
        root = steps is not None and len(values) == 1 and one["variable"].removesuffix("_rms") in ranking.SQUARED
        rows = list(zip(*(next(answers)["rows"] for _ in budgets)))   # [policy][budget]

        def estimate(key):
            numbers = np.array([[row["estimate"][key] for row in own] for own in rows], float)
            return np.sqrt(numbers) if root else numbers

        several, low = len(values) > 1, estimate("low")
        intervals = several or not np.isnan(low).all()
        marked = one["better"] != "none"
        told.append({
            **one, "values": plain(estimate("value") if several else values[0]),
            "marks": [[row["mark"] if marked else "" for row in own] for own in rows],
            "low": plain(low) if intervals else None,
            "high": plain(estimate("high")) if intervals else None,
            "traces": plain(values) if several else None,
            "equal": [[at_equal_bytes(one, row["equal_bytes"], root)
                       if marked and row["mark"] in ("more", "less") else "" for row in own]
                      for own in rows]})
    return told


def at_equal_bytes(one, equal, root):
    """Words for a policy where it holds what the budget gives."""
    value, difference = equal["estimate"]["value"], equal["difference"]
    if value is None:
        return "Not compared at equal bytes, as its own budgets hold only more or only less."
    none = 1 if ranking.scale_of(one["variable"], one["unit"]) == "log" else 0
    than = "not told apart from the best"
    if difference["low"] is not None and not difference["low"] <= none <= difference["high"]:
        than = f"{'less' if difference['value'] < none else 'more'} than the best"
    return f"At equal bytes, between its own budgets: {np.sqrt(value) if root else value:.3g}, {than}."


def steps_of(results, name):
    """[policy, budget, step] whose mean over steps a summary is; None where there is no such series."""
    base = name.removesuffix("_rms").removesuffix("_mean")
    if base == name or not results.has(base):
        return None
    dims = set(results.data[base].dims) - {"policy", "budget", "step"}
    if dims == {"layer"}:
        values = mean(results.variable(base, "policy", "budget", "step", "layer").values)
    elif dims or "step" not in results.data[base].dims:
        return None
    else:
        values = results.variable(base, "policy", "budget", "step").values
    return values ** 2 if base in ranking.SQUARED else values


def measures_of(results):
    """(measure, [policy, budget], [policy, budget, step] or None) of a results file and its loops."""
    for loop in results.loops:
        for name in loop.data.variables:
            if loop.data[name].dims == ("policy", "budget") and name not in UNTOLD:
                base = str(name).removesuffix("_mean")
                steps = results.loop_variable(base) if base != name and base in loop.data.variables else None
                yield measure(name, loop.data[name]), results.loop_variable(name), steps
    for name in map(str, results.data.variables):
        array = results.data[name]
        if array.dtype.kind != "f" or "policy" not in array.dims or name in UNTOLD:
            continue
        dims = set(array.dims)
        if dims == {"policy", "budget"}:
            yield (measure(name, array), results.variable(name, "policy", "budget").values, steps_of(results, name))
        elif dims == {"policy", "budget", "step"}:
            values = results.variable(name, "policy", "budget", "step").values
            yield measure(name, array, "worst", "worst step"), extreme(name, values), None
        elif dims == {"policy", "budget", "layer"}:
            values = results.variable(name, "policy", "budget", "layer").values
            if array.attrs.get("units") == "count":
                total = np.where(np.isnan(values).all(-1), np.nan, np.nansum(values, -1))
                yield measure(name, array, "sum", SUM), total, None
                continue
            yield measure(name, array, "mean", MEAN), mean(values), steps_of(results, name)
            if better(name) != "none":
                yield measure(name, array, "worst", WORST), extreme(name, values), None


def mean(values):
    defined = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(defined, values, 0).sum(-1) / defined.sum(-1)


def extreme(name, values):
    """The worst along the last axis, NaN left out."""
    return (np.fmin if better(name) == "high" else np.fmax).reduce(values, axis=-1)


def measure(name, array, fold="", fold_text=""):
    text = str(array.attrs.get("long_name", name)).split(": ")[0]
    return {"id": f"{name}:{fold}" if fold else name, "variable": name, "fold": fold_text,
            "label": f"{text}, {fold_text}" if fold_text else text,
            "unit": str(array.attrs.get("units", "")), "better": better(name)}


def plain(values):
    """Nested lists of numbers with seven digits; None where undefined or infinite."""
    if np.ndim(values) == 0:
        return float(f"{values:.7g}") if np.isfinite(values) else None
    return [plain(one) for one in values]
