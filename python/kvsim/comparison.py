"""Paired differences of two policies, over steps or over traces."""

from collections.abc import Iterable

import numpy as np
import pandas
import xarray

from . import ranking
from .budgets import budget_text
from .errors import DataError, UsageError
from .plain import counted, near, several
from .program import exchange
from .ranking import SQUARED
from .results_file import Datasets, as_file, open_results

#: Measures that are compared unless it is asked for otherwise, of what the files have.
USUAL = ("kl_divergence", "stream_error")
WORDS = {"kl_divergence": "loss", "stream_error": "stream error"}
LEVEL = 0.05
#: Of a difference, and of that at equal bytes.
ENDS = ("value", "low", "high", "equal_bytes", "equal_bytes_low", "equal_bytes_high")
#: One trace's files: results of a replay, losses of its closed loop, or both.
Text = list[xarray.Dataset]


def named(dataset: xarray.Dataset) -> xarray.Dataset:
    """The file with budgets by their one text: 0.2 for 20%."""
    return dataset.assign_coords(
        policy=list(map(str, dataset.policy.values)),
        budget=list(map(budget_text, dataset.budget_label.values))).drop_duplicates(["policy", "budget"])


def texts_of(files: Iterable[xarray.Dataset]) -> list[Text]:
    """The files by trace."""
    found: dict[tuple, Text] = {}
    for one in files:
        key = (str(one.attrs.get("trace_digest", id(one))), str(one.attrs.get("later", "")))
        found.setdefault(key, []).append(named(one))
    return list(found.values())


def with_variable(text: Text, name: str) -> xarray.Dataset | None:
    """The file that has it."""
    return next((one for one in text if name in one.variables), None)


def series_of(dataset: xarray.Dataset, measure: str, policy: str, budget: str) -> np.ndarray:
    """[step], or one number for what has no steps: mean over layers and whatever else there is."""
    array = dataset[measure].sel(policy=policy, budget=budget).astype(float)
    if measure == "kl_divergence" and "answer_begin" in dataset.attrs:
        array = array.isel(step=dataset.step.values >= int(dataset.attrs["answer_begin"]) - 1)
    array = array.mean([one for one in array.dims if one != "step"])
    values = np.atleast_1d(array.values)
    return values ** 2 if measure in SQUARED else values


def one_number(series: np.ndarray, measure: str) -> float:
    """One number for a trace's steps."""
    mean = float(np.nanmean(series)) if np.isfinite(series).any() else np.nan
    return float(np.sqrt(mean)) if measure in SQUARED else mean


def measured(texts: list[Text], asked: list[str], policies: tuple[str, str]) -> dict[str, list[xarray.Dataset]]:
    """The file of every trace by measure; each must have what can be compared."""
    first = texts[0][0].attrs.get("trace", "")
    names = asked or [one for one in USUAL if all(with_variable(text, one) is not None for text in texts)]
    if not names:
        raise DataError(f"{first}: neither kl_divergence nor stream_error in all files; --metric names another measure")
    if policies[0] == policies[1]:
        raise UsageError(f"compare: found {policies[0]} twice, expected two policies")
    found: dict[str, list[xarray.Dataset]] = {}
    for measure in names:
        layers: dict[str, tuple[list, str]] = {}
        for text in texts:
            data, name = with_variable(text, measure), text[0].attrs.get("trace", "")
            if data is None or not {"policy", "budget"} <= set(data[measure].dims):
                raise DataError(f"{name}: no variable {measure} over policy and budget")
            if data[measure].dtype.kind != "f":
                raise DataError(f"{name}: {measure} is no number that can be compared")
            if len(texts) == 1 and "step" not in data[measure].dims:
                raise DataError(f"{name}: {measure} has no steps; with one trace only measures per "
                                "step can be compared, such as " + ", ".join(USUAL))
            known = data.policy.values.tolist()
            for one in policies:
                if one not in known:
                    raise DataError(f"{name}: no policy {one}" + (near(one, known) or f"; found {', '.join(known)}"))
            # A measure of some of a model's layers is no number beside that of others.
            own = data.layer.values.tolist() if "layer" in data else []
            others, other = layers.setdefault(str(data.attrs.get("model", "")), (own, name))
            if own != others:
                raise DataError(f"{name}: {measure} is of {counted(len(own), 'layer')}, that of {other} of "
                                f"{len(others)}: expected traces of the same layers of a model")
            found.setdefault(measure, []).append(data)
    return found


def held_apart(texts: list[Text], files: list[xarray.Dataset], policies: tuple[str, str], budget: str,
               name: str = "held_of_budget", of_a: str = "") -> float:
    """A's entries (at the budget `of_a`) over B's, mean over traces; 1 where they hold alike, NaN:
    unknown. `name`: of another variable."""
    ratios = []
    for text, data in zip(texts, files):
        if "unranked" not in data:   # of a kvsim that did not record what policies hold
            data = with_variable(text, name)
        if data is None:
            return np.nan
        a, b = data.get_index("policy").get_indexer(policies)
        own, other = data.get_index("budget").get_indexer([of_a or budget, budget])
        held = ranking.cells(data, name, np.nan)
        ratios.append(held[a, own] / held[b, other])
    return float(np.exp(np.mean(np.log(ratios))))


def sentences(frame: pandas.DataFrame, policies: tuple[str, str], texts: list[Text]) -> list[str]:
    """The table in words, a sentence a measure and one of how sure it is."""
    a, b = policies
    said = []
    for measure, own in frame.groupby("measure", sort=False):
        name = WORDS.get(measure, str(measure).replace("_", " "))
        sign = "" if own.by.iloc[0] == "ratio" else "+"
        parts = [f"{row.value:{sign}.3g} [{row.low:.3g}, {row.high:.3g}] at {row.budget}" for row in own.itertuples()]
        than = f"over that of {b} is" if own.by.iloc[0] == "ratio" else f"less that of {b} is"
        said.append(f"The {name} of {a} {than} {', '.join(parts)}.")
        equal = [f"{row.equal_bytes:{sign}.3g} [{row.equal_bytes_low:.3g}, {row.equal_bytes_high:.3g}] at "
                 f"{row.budget}" for row in own.itertuples() if not np.isnan(row.equal_bytes)]
        if equal:
            said.append(f"Where {a} holds the bytes of {b}, between its own budgets, it is {', '.join(equal)}.")
    off = frame[~frame.held.map(ranking.alike)]
    if len(off):
        cells = ", ".join(dict.fromkeys(f"{row.held:.3g} times at {row.budget}" for row in off.itertuples()))
        said.append(f"They do not hold alike: {a} holds, of what {b} holds, {cells}; such budgets are no "
                    "fair comparison.")
        nowhere = ", ".join(dict.fromkeys(off[off.equal_bytes.isna()].budget))
        if nowhere:
            said.append(f"At {nowhere} they cannot be compared at equal bytes: all budgets of {a} hold more, "
                        f"or all less, than {b}.")
    # Each ratio is of one trace, but their mean is over all.
    told = [text[0].attrs for text in texts]
    models, lengths = {str(one.get("model", "")) for one in told}, [int(one.get("prompt_len", 0)) for one in told]
    layers = {(text[0].sizes["layer"], int(one.get("num_layers", text[0].sizes["layer"])))
              for text, one in zip(texts, told) if "layer" in text[0].sizes}
    unlike = [f"{len(models)} models"] if len(models) > 1 else []
    if max(lengths) > (1 + ranking.ALIKE) * min(lengths):
        unlike.append(f"prompts of {min(lengths)} to {max(lengths)} tokens")
    if len(layers) > 1 and any(some < every for some, every in layers):
        unlike.append(" and ".join(f"{some} of {every} layers" for some, every in sorted(layers)))
    if unlike:
        said.append(f"The traces differ: {', '.join(unlike)}; a mean over them is of all these.")
    count, differ = len(frame), int(frame.differs.sum())
    over = f"{len(texts)} traces" if len(texts) > 1 else \
        f"{frame['count'].max()} steps of one trace, in circular blocks"
    said.append(f"{count} comparison{'s' * (count != 1)} over {over}, 95 % intervals, paired; {differ} of "
                f"{count} differ{'s' * (differ == 1)} after Holm's correction at {100 * LEVEL:g} %.")
    return said


def compare(a: str, b: str, results: Datasets, *, metrics: str | Iterable[str] | None = None,
            budgets: str | float | Iterable[str | float] | None = None) -> pandas.DataFrame:
    """How two policies differ at every budget, paired, with intervals.

    >>> table = kvsim.compare("h2o", "snapkv", [first, second])
    >>> print(*table.attrs["sentences"], sep="\\n")

    Args:
        a: a policy of the results, as they name it.
        b: the one that it is compared with.
        results: of `replay`, `sweep` and `closed_loop`, or paths; files of one trace belong together.
        metrics: variables over policy and budget; loss and stream error where all have them.
        budgets: as they were typed; all that the files have in common.

    Returns:
        A row per measure and budget: `a` and `b`, their ratio or difference with interval and chance,
        what A holds over what B holds, and whether they differ after Holm's correction."""
    from .plots import statistics

    given = several(results)
    if not given:
        raise UsageError("compare: found no results, expected at least one file")
    with exchange() as folder:
        texts = texts_of([open_results(as_file(one, folder, k)) for k, one in enumerate(given)])
    wanted = [budget_text(one) for one in several(budgets)]
    policies, over_traces = (str(a), str(b)), len(texts) > 1
    table, contests = [], []
    for measure, files in measured(texts, several(metrics), policies).items():
        common = [one for one in files[0].budget.values.tolist() if all(one in other.budget for other in files)]
        for one in wanted:
            if one not in common:
                raise DataError(f"{texts[0][0].attrs.get('trace', '')}: no budget {one} in all files; found "
                                f"{', '.join(common) or 'none in common'}")

        def numbers_of(policy: str, budget: str) -> tuple[list[float], list | np.ndarray]:
            """One number a trace, and what is compared: these, or the steps of a single trace."""
            own = [series_of(one, measure, policy, budget) for one in files]
            numbers = [one_number(one, measure) for one in own]
            return numbers, numbers if over_traces else own[0]

        scale = ranking.scale_of(measure, str(files[0][measure].attrs.get("units", "1")))
        ratio = scale == "log"
        for budget in wanted or common:
            numbers, shown = zip(*(numbers_of(policy, budget) for policy in policies))
            series = np.array(shown, float)
            defined = np.isfinite(series).all(axis=0)
            held = held_apart(texts, files, policies, budget)
            points = [(held_apart(texts, files, policies, budget, "held_share", other),
                       np.array(numbers_of(policies[0], other)[1], float)[defined])
                      for other in common] if not ranking.alike(held) else []   # of A
            # B alone is ranked, so that the difference is A's from it.
            contests.append(ranking.contest(
                series[:, defined], scale=scale, units="traces" if over_traces else "steps",
                unranked=[ranking.HOLDS_MORE, ranking.RANKED], points=[points, []]))
            middle = [np.exp(np.mean(np.log(np.maximum(own, 1e-12)))) if ratio else np.mean(own) for own in numbers]
            table.append({"measure": measure, "budget": budget, "a": middle[0], "b": middle[1],
                          "by": "ratio" if ratio else "difference", "count": int(defined.sum()),
                          "held": held, "over": "traces" if over_traces else "steps"})
    for row, answer in zip(table, ranking.rank(contests)):
        root = row["by"] == "ratio" and not over_traces and row["measure"] in SQUARED
        own = answer["rows"][0]
        found = pandas.DataFrame([own["difference"], own["equal_bytes"]["difference"]], dtype=float)   # NaN for None
        ends = found[["value", "low", "high"]].to_numpy().ravel()
        row |= {"chance": found.chance[0], **dict(zip(ENDS, np.sqrt(ends) if root else ends))}
    frame = pandas.DataFrame(table)[[
        "measure", "budget", "a", "b", "by", *ENDS[:3], "chance", "over", "count", "held", *ENDS[3:]]]
    known = frame.chance.notna()
    frame["differs"] = False
    frame.loc[known, "differs"] = statistics.holm(frame.chance[known], LEVEL)
    frame.attrs["sentences"] = sentences(frame, policies, texts)
    return frame
