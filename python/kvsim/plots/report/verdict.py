"""The table of policies by budget: all measures of the files, with intervals over traces."""

import numpy as np

from .. import load, looks, statistics
from . import sources as inputs

# How the summaries over layers that the table offers are called.
MEAN, WORST, SUM = "mean over layers", "worst layer", "sum over layers"
HIGH = ("retained_", "represented_", "keep_rate", "span_retained", "span_spearman", "compression",
        "decode_speedup", "top1_", "generated_agreement", "importance_pearson",
        "importance_cosine", "minmax_bound")
DASH_UNIT = 1.5   # pixels
NEITHER = ("kept", "entries_", "realised_", "tied_at", "bias_index", "budget", "merge_count",
           "log_mass", "zip_scale", "attention_sag")
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
    measures, found = {}, {}
    for source in sources:
        for measure, values in measures_of(source):
            measures.setdefault(measure["id"], measure)
            store = found.setdefault(measure["id"], np.full(
                (len(digests), len(policies), len(labels)), np.nan))
            own = [policies.index(one) for one in source.results.policies]
            columns = [labels.index(one) for one in source.results.budget_labels()]
            # Files of one trace share a row: the first that has a number gives it.
            row = store[digests.index(source.digest)]
            part = row[np.ix_(own, columns)]
            row[np.ix_(own, columns)] = np.where(np.isnan(part), values, part)
    order = sorted(measures, key=lambda one: FIRST.index(one) if one in FIRST else len(FIRST))
    defined = [one for one in order if not np.isnan(found[one]).all()]
    rows = [with_interval(measures[one], found[one]) for one in defined or order]
    return {"policies": policies, "budgets": [{"label": one, "ratio": ratio[one]}
                                              for one in labels],
            "traces": [next(s.name for s in sources if s.digest == one) for one in digests],
            "measures": rows, "looks": looks_of(policies),
            "hindsight": with_hindsight(sources, policies, hindsight)}


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


def measures_of(source):
    """(measure, [policy, budget]) of one results file and its closed loops."""
    results = source.results
    for loop in source.loops:
        for name in loop.data.variables:
            if loop.data[name].dims == ("policy", "budget"):
                yield measure(name, loop.data[name]), inputs.loop_values(source, name)
    for name in map(str, results.data.variables):
        array = results.data[name]
        if array.dtype.kind != "f" or "policy" not in array.dims:
            continue
        dims = set(array.dims)
        if dims == {"policy", "budget"}:
            yield measure(name, array), results.variable(name, "policy", "budget").values
        elif dims == {"policy", "budget", "step"}:
            values = results.variable(name, "policy", "budget", "step").values
            yield measure(name, array, "worst", "worst step"), extreme(name, values)
        elif dims == {"policy", "budget", "layer"}:
            yield from over_layers(name, array, results)


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


def with_interval(one, values):
    """Mean over traces, and its 95 % interval where several have the number."""
    count = (~np.isnan(values)).sum(axis=0)
    average = mean(np.moveaxis(values, 0, -1))
    low, high = np.full(average.shape, np.nan), np.full(average.shape, np.nan)
    for p, b in zip(*np.nonzero(count > 1)):
        defined = values[:, p, b][~np.isnan(values[:, p, b])]
        _, (low[p, b], high[p, b]) = statistics.over_traces(defined)
    several = values.shape[0] > 1
    return {**one, "values": plain(average), "low": plain(low) if several else None,
            "high": plain(high) if several else None,
            "traces": plain(values) if several else None}


def plain(values):
    """Nested lists of numbers with seven digits; None where undefined or infinite."""
    if np.ndim(values) == 0:
        return float(f"{values:.7g}") if np.isfinite(values) else None
    return [plain(one) for one in values]


def check_same_model(sources):
    """One line when the files are of different models: means over them say little."""
    models = list(dict.fromkeys(source.results.model for source in sources))
    return [] if len(models) == 1 else [f"the files are of different models: {', '.join(models)}"]


