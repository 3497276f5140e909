"""The table of policies by budget: all measures of the files, ranked by the program (kvsim.ranking),
with intervals over traces, or over the steps of a single one."""

import numpy as np

from ... import ranking
from .. import load, looks
from . import sources as inputs

# How the summaries over layers that the table offers are called.
MEAN, WORST, SUM = "mean over layers", "worst layer", "sum over layers"
HIGH = ("retained_", "represented_", "keep_rate", "span_retained", "span_spearman", "compression",
        "decode_speedup", "top1_", "generated_agreement", "importance_pearson",
        "importance_cosine", "minmax_bound")
DASH_UNIT = 1.5   # pixels
NEITHER = ("held_", "budget_share", "kept", "entries_", "realised_", "tied_at", "bias_index", "budget", "merge_count",
           "log_mass", "zip_scale", "attention_sag")
UNTOLD = ("unranked",)
FIRST = ("kl_divergence_mean", "stream_error_rms", "kl_divergence_max", "nll_difference_mean",
         "top1_agreement_mean", "generated_agreement", "stream_error:worst",
         "retained_importance_mean:mean", "retained_importance_min:worst",
         "retained_importance_min:mean", "outlier_count:sum", "output_error_mean:mean",
         "output_error_max:worst", "residual_error_mean:mean", "residual_error_max:worst")


def better(name):
    """'high', 'low', or 'none': which values of a measure are the good ones."""
    if name.startswith(NEITHER):
        return "none"
    return "high" if name.startswith(HIGH) else "low"


def table(sources, hindsight=()):
    """The verdict as the page reads it (docs/report.md). `hindsight`: [stage, kind] of every kind
    that sees later queries.
    """
    policies = list(dict.fromkeys(one for source in sources for one in source.results.policies))
    labels = list(dict.fromkeys(one for source in sources
                                for one in source.results.budget_labels()))
    ratio = {label: float(value) for source in reversed(sources)
             for label, value in zip(source.results.budget_labels(), source.results.budgets)}
    digests = list(dict.fromkeys(source.digest for source in sources))
    measures, found, series = {}, {}, {}
    for source in sources:
        for measure, values, steps in measures_of(source):
            measures.setdefault(measure["id"], measure)
            store = found.setdefault(measure["id"], np.full(
                (len(digests), len(policies), len(labels)), np.nan))
            own = [policies.index(one) for one in source.results.policies]
            columns = [labels.index(one) for one in source.results.budget_labels()]
            # Files of one trace share a row: the first that has a number gives it.
            row = store[digests.index(source.digest)]
            part = row[np.ix_(own, columns)]
            row[np.ix_(own, columns)] = np.where(np.isnan(part), values, part)
            if steps is not None and len(digests) == 1:
                whole = series.setdefault(measure["id"], np.full(
                    (len(policies), len(labels), steps.shape[-1]), np.nan))
                if whole.shape[-1] == steps.shape[-1]:
                    part = whole[np.ix_(own, columns)]
                    whole[np.ix_(own, columns)] = np.where(np.isnan(part), steps, part)
    order = sorted(measures, key=lambda one: FIRST.index(one) if one in FIRST else len(FIRST))
    defined = [one for one in order if not np.isnan(found[one]).all()]
    unranked, held, shares = who_is_ranked(sources, policies, labels, hindsight)
    rows = ranked([(measures[one], found[one], series.get(one)) for one in defined or order],
                  unranked, held, shares)
    return {"policies": policies, "budgets": [{"label": one, "ratio": ratio[one]}
                                              for one in labels],
            "traces": [next(s.name for s in sources if s.digest == one) for one in digests],
            "measures": rows, "looks": looks_of(policies), "held": plain(held),
            "hindsight": [bool(one) for one in (unranked == ranking.HINDSIGHT).any(axis=1)]}


def who_is_ranked(sources, policies, labels, kinds):
    """[policy, budget]: `unranked`; what is held over what the budget gives; shares of the full cache's
    bytes that are held and given: means over traces."""
    shape = len(policies), len(labels)
    unranked, held = np.zeros(shape, int), []
    shares = {"held_share": [], "budget_share": []}
    for source in sources:
        at = np.ix_([policies.index(one) for one in source.results.policies],
                    [labels.index(one) for one in source.results.budget_labels()])
        unranked[at] = np.maximum(unranked[at], ranking.why_unranked(source.results.data))
        held.append(np.full(shape, np.nan))
        held[-1][at] = ranking.held_of_budget(source.results.data)
        for name, own in shares.items():
            own.append(np.full(shape, np.nan))
            own[-1][at] = ranking.cells(source.results.data, name, np.nan)
    for policy, sees in enumerate(with_hindsight(sources, policies, kinds)):
        if sees:
            unranked[policy] = ranking.HINDSIGHT
    return unranked, mean(np.stack(held, -1)), [mean(np.stack(own, -1)) for own in shares.values()]


def ranked(measures, unranked, held, shares):
    """Every measure with values, intervals and marks by policy and budget, and where a policy is not
    ranked for what it holds, with what it is at equal bytes. A measure of one trace that is no mean
    over steps has its values alone."""
    held_share, budget_share = shares
    contests, places = [], []
    for number, (one, values, steps) in enumerate(measures):
        by_steps = steps is not None and values.shape[0] == 1
        for b in range(values.shape[2]):
            every = np.moveaxis(steps, 1, 0) if by_steps else values.T   # [budget, policy, step or trace]
            own = every[b]
            points = [[(held_share[p, other] / budget_share[p, b], every[other, p])
                       for other in range(len(every))]
                      if unranked[p, b] in (ranking.HOLDS_MORE, ranking.HOLDS_LESS) else []
                      for p in range(len(own))]
            contests.append(ranking.contest(
                own, units="steps" if by_steps else "traces",
                scale=ranking.scale_of(one["variable"], one["unit"]),
                more_is_better=one["better"] == "high", unranked=unranked[:, b], held=held[:, b],
                points=points))
            places.append((number, b, by_steps))
    cells = [{key: np.full(values.shape[1:], np.nan) for key in ("value", "low", "high")}
             for _, values, _ in measures]
    marks = [np.full(values.shape[1:], "", dtype="U5") for _, values, _ in measures]
    equal = [[["" for _ in range(values.shape[2])] for _ in range(values.shape[1])]
             for _, values, _ in measures]
    for (number, b, by_steps), answer in zip(places, ranking.rank(contests)):
        root = by_steps and measures[number][0]["variable"] in SQUARED.values()
        for p, row in enumerate(answer["rows"]):
            for key, store in cells[number].items():
                value = row["estimate"][key]
                if value is not None:
                    store[p, b] = np.sqrt(value) if root else value
            if measures[number][0]["better"] != "none":
                marks[number][p, b] = row["mark"]
                if row["mark"] in ("more", "less"):
                    equal[number][p][b] = at_equal_bytes(measures[number][0], row["equal_bytes"], root)
    return [with_marks(one, values, store, mark) | {"equal": told} for (one, values, _), store, mark, told
            in zip(measures, cells, marks, equal)]


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


def with_marks(one, values, cells, marks):
    several = values.shape[0] > 1
    intervals = several or not np.isnan(cells["low"]).all()
    return {**one, "values": plain(cells["value"] if several else values[0]), "marks": marks.tolist(),
            "low": plain(cells["low"]) if intervals else None,
            "high": plain(cells["high"]) if intervals else None,
            "traces": plain(values) if several else None}


def with_hindsight(sources, policies, kinds):
    """[policy]: sees later queries, so that no star is its own."""
    seen = {policy for source in sources
            for policy, keys in load.parameters(source.results).items()
            if any(keys.get(stage) == kind for stage, kind in kinds)}
    return [policy in seen for policy in policies]


def looks_of(policies):
    """{policy: how it is drawn}, as the page's charts want it; dashes in pixels."""
    found = looks.of(tuple(one for one in policies if not load.is_full(one)))
    return {policy: {"colour": look.colour, "marker": looks.MARKERS[look.marker],
                     "dash": " ".join(f"{DASH_UNIT * part:g}" for part in looks.DASHES[look.dash])}
            for policy, look in found.items()}


# Measures that are root mean squares over steps: of which variable.
SQUARED = {"stream_error": "stream_error_rms", "stream_perturbation": "stream_perturbation_rms"}


def steps_of(results, name):
    """[policy, budget, step] whose mean over steps a summary is; None where there is no such series."""
    for base, summary in SQUARED.items():
        if name == summary and results.has(base):
            return results.variable(base, "policy", "budget", "step").values ** 2
    base = name.removesuffix("_mean")
    if base == name or not results.has(base):
        return None
    array = results.data[base]
    if set(array.dims) == {"policy", "budget", "layer", "step"}:
        return mean(results.variable(base, "policy", "budget", "step", "layer").values)
    return results.variable(base, "policy", "budget", "step").values \
        if set(array.dims) == {"policy", "budget", "step"} else None


def measures_of(source):
    """(measure, [policy, budget], [policy, budget, step] or None) of a results file and its loops."""
    results = source.results
    for loop in source.loops:
        for name in loop.data.variables:
            if loop.data[name].dims == ("policy", "budget") and name not in UNTOLD:
                base = str(name).removesuffix("_mean")
                steps = inputs.loop_values(source, base) \
                    if base != name and base in loop.data.variables else None
                yield measure(name, loop.data[name]), inputs.loop_values(source, name), steps
    for name in map(str, results.data.variables):
        array = results.data[name]
        if array.dtype.kind != "f" or "policy" not in array.dims or name in UNTOLD:
            continue
        dims = set(array.dims)
        if dims == {"policy", "budget"}:
            yield (measure(name, array), results.variable(name, "policy", "budget").values,
                   steps_of(results, name))
        elif dims == {"policy", "budget", "step"}:
            values = results.variable(name, "policy", "budget", "step").values
            yield measure(name, array, "worst", "worst step"), extreme(name, values), None
        elif dims == {"policy", "budget", "layer"}:
            for one, values in over_layers(name, array, results):
                yield one, values, steps_of(results, name) if one["fold"] == MEAN else None


def over_layers(name, array, results):
    values = results.variable(name, "policy", "budget", "layer").values
    if array.attrs.get("units") == "count":
        with np.errstate(invalid="ignore"):
            total = np.where(np.isnan(values).all(-1), np.nan, np.nansum(values, -1))
        yield measure(name, array, "sum", SUM), total
        return
    yield measure(name, array, "mean", MEAN), mean(values)
    if better(name) != "none":
        yield measure(name, array, "worst", WORST), extreme(name, values)


def mean(values):
    defined = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(defined, values, 0).sum(-1) / defined.sum(-1)


def extreme(name, values):
    """The worst along the last axis, NaN left out."""
    sign = -1 if better(name) == "high" else 1
    filled = np.where(np.isnan(values), -np.inf, sign * values).max(-1)
    return np.where(np.isneginf(filled), np.nan, sign * filled)


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


def check_poolable(sources):
    """The verdict is of means over traces: of what differs it is made only when it is asked for."""
    try:
        load.check_poolable([source.results for source in sources])
    except load.Missing as mixed:
        raise load.data_error(str(mixed)) from None


def check_same_model(sources):
    """One line when the files are of different models: means over them say little."""
    models = list(dict.fromkeys(source.results.model for source in sources))
    return [] if len(models) == 1 else [f"the files are of different models: {', '.join(models)}"]


