"""Paired differences of two policies, over steps or over traces."""

from collections.abc import Iterable

import numpy as np
import pandas
import xarray

from . import ranking
from .budgets import budget_text
from .errors import DataError, UsageError
from .plain import counted, near
from .results_file import Datasets, as_file, as_list, open_results
from .program import exchange

#: Measures that are compared unless it is asked for otherwise, of what the files have.
USUAL = ("kl_divergence", "stream_error")
WORDS = {"kl_divergence": "loss", "stream_error": "stream error"}
SQUARED = ("stream_error", "stream_perturbation")   # their mean over steps is of squares
LEVEL = 0.05


class Text:
    """One trace's files: results of a replay, losses of its closed loop, or both."""

    def __init__(self, name: str):
        self.name = name
        self.files: list[xarray.Dataset] = []

    def with_variable(self, name: str) -> xarray.Dataset | None:
        """The file that has it."""
        return next((one for one in self.files if name in one.variables), None)


def texts_of(files: Iterable[xarray.Dataset]) -> list[Text]:
    """The files by trace."""
    found: dict[tuple, Text] = {}
    for one in files:
        key = (str(one.attrs.get("trace_digest", id(one))), str(one.attrs.get("later", "")))
        found.setdefault(key, Text(str(one.attrs.get("trace", "")))).files.append(one)
    return list(found.values())


def labels(dataset: xarray.Dataset) -> list[str]:
    """Budgets, each by its one text: 0.2 for 20%."""
    return [budget_text(one) for one in np.atleast_1d(dataset["budget_label"].values)]


def series_of(dataset: xarray.Dataset, measure: str, policy: str, budget: str) -> np.ndarray:
    """[step], or one number for what has no steps: mean over layers and whatever else there is."""
    array = dataset[measure].isel(policy=list(map(str, dataset.policy.values)).index(policy),
                                  budget=labels(dataset).index(budget)).astype(float)
    if measure == "kl_divergence" and "answer_begin" in dataset.attrs:
        array = array.isel(step=dataset.step.values >= int(dataset.attrs["answer_begin"]) - 1)
    array = array.mean([one for one in array.dims if one != "step"])
    values = np.atleast_1d(array.values)
    return values ** 2 if measure in SQUARED else values


def one_number(series: np.ndarray, measure: str) -> float:
    """One number for a trace's steps."""
    mean = float(np.nanmean(series)) if np.isfinite(series).any() else np.nan
    return float(np.sqrt(mean)) if measure in SQUARED else mean


def measures_of(texts: list[Text], asked: Iterable[str] | None) -> list[str]:
    """The measures to compare; each must be in the files of every trace."""
    names = list(asked) if asked else [
        one for one in USUAL if all(text.with_variable(one) is not None for text in texts)]
    if not names:
        raise DataError(f"{texts[0].name}: neither kl_divergence nor stream_error in all files; "
                        "--metric names another measure")
    for name in names:
        for text in texts:
            found = text.with_variable(name)
            if found is None or not {"policy", "budget"} <= set(found[name].dims):
                raise DataError(f"{text.name}: no variable {name} over policy and budget")
            if found[name].dtype.kind != "f":
                raise DataError(f"{text.name}: {name} is no number that can be compared")
            if len(texts) == 1 and "step" not in found[name].dims:
                raise DataError(f"{text.name}: {name} has no steps; with one trace only measures per "
                                "step can be compared, such as " + ", ".join(USUAL))
    return names


def check_policies(texts: list[Text], measures: list[str], policies: tuple[str, str]) -> None:
    if policies[0] == policies[1]:
        raise UsageError(f"compare: found {policies[0]} twice, expected two policies")
    for text in texts:
        for measure in measures:
            known = list(map(str, text.with_variable(measure).policy.values))
            for one in policies:
                if one not in known:
                    raise DataError(f"{text.name}: no policy {one}"
                                    + (near(one, known) or f"; found {', '.join(known)}"))


def check_layers(texts: list[Text], measures: list[str]) -> None:
    """A measure of some of a model's layers is no number beside that of others."""
    for measure in measures:
        seen: dict[str, tuple[list, str]] = {}
        for text in texts:
            data = text.with_variable(measure)
            own = data.layer.values.tolist() if "layer" in data else []
            layers, name = seen.setdefault(str(data.attrs.get("model", "")), (own, text.name))
            if own != layers:
                raise DataError(f"{text.name}: {measure} is of {counted(len(own), 'layer')}, that of {name} of "
                                f"{len(layers)}: expected traces of the same layers of a model")


def held_apart(texts: list[Text], measure: str, policies: tuple[str, str], budget: str,
               name: str = "held_of_budget", of_a: str = "") -> float:
    """A's entries (at the budget `of_a`) over B's, mean over traces; 1 where they hold alike, NaN:
    unknown. `name`: of another variable."""
    ratios = []
    for text in texts:
        data = text.with_variable(measure)
        if not ranking.says_what_is_held(data):
            data = text.with_variable(name)
        if data is None:
            return np.nan
        known, own = list(map(str, data.policy.values)), labels(data)
        held = ranking.cells(data, name, np.nan)
        ratios.append(held[known.index(policies[0]), own.index(of_a or budget)] /
                      held[known.index(policies[1]), own.index(budget)])
    return float(np.exp(np.mean(np.log(ratios))))


def compare_texts(policies: tuple[str, str], texts: list[Text], asked: Iterable[str] | None,
                  budgets: Iterable[str] | None) -> pandas.DataFrame:
    from .plots import statistics

    measures = measures_of(texts, asked)
    check_policies(texts, measures, policies)
    check_layers(texts, measures)
    several = len(texts) > 1
    rows, contests = [], []
    for measure in measures:
        data = [text.with_variable(measure) for text in texts]
        common = [one for one in labels(data[0]) if all(one in labels(other) for other in data)]
        for one in budgets or ():
            if one not in common:
                raise DataError(f"{texts[0].name}: no budget {one} in all files; found "
                                f"{', '.join(common) or 'none in common'}")
        scale = ranking.scale_of(measure, str(data[0][measure].attrs.get("units", "1")))
        for budget in budgets or common:
            pair = [[series_of(one, measure, policy, budget) for one in data] for policy in policies]
            numbers = [[one_number(one, measure) for one in own] for own in pair]
            shown = numbers if several else [own[0] for own in pair]
            defined = np.isfinite(np.array(shown, float)).all(axis=0)
            held = held_apart(texts, measure, policies, budget)
            points = []   # of A, where it does not hold what B holds
            for other in () if ranking.alike(held) else common:
                there = [series_of(one, measure, policies[0], other) for one in data]
                if several:
                    there = [one_number(one, measure) for one in there]
                points.append((held_apart(texts, measure, policies, budget, "held_share", other),
                               np.array(there if several else there[0], float)[defined]))
            contests.append(ranking.contest(
                np.array(shown, float)[:, defined], scale=scale, units="traces" if several else "steps",
                unranked=[ranking.HOLDS_MORE, ranking.RANKED], points=[points, []]))
            rows.append({"measure": measure, "budget": budget, "scale": scale,
                         "count": int(defined.sum()), "numbers": numbers, "held": held})
    table = []
    for row, answer in zip(rows, ranking.rank(contests)):
        ratio = row["scale"] == "log"
        root = ratio and not several and row["measure"] in SQUARED
        # B alone is ranked, so that the difference is A's from it.
        found, *ends = bounds(answer["rows"][0]["difference"], root)
        _, *equal = bounds(answer["rows"][0]["equal_bytes"]["difference"], root)
        middle = [np.exp(np.mean(np.log(np.maximum(own, 1e-12)))) if ratio else np.mean(own)
                  for own in row["numbers"]]
        table.append({
            "measure": row["measure"], "budget": row["budget"], "a": middle[0], "b": middle[1],
            "by": "ratio" if ratio else "difference", "value": ends[0], "low": ends[1],
            "high": ends[2], "chance": found["chance"], "over": "traces" if several else "steps",
            "count": row["count"], "held": row["held"],
            **dict(zip(("equal_bytes", "equal_bytes_low", "equal_bytes_high"), equal))})
    frame = pandas.DataFrame(table)
    known = frame.chance.notna()
    frame["differs"] = False
    frame.loc[known, "differs"] = statistics.holm(frame.chance[known], LEVEL)
    frame.attrs["sentences"] = sentences(frame, policies, texts)
    return frame


def bounds(difference: dict, root: bool) -> tuple:
    """A difference with NaN for what it has not, and its value, low and high."""
    found = {key: np.nan if one is None else one for key, one in difference.items()}
    return found, *(np.sqrt(found[one]) if root else found[one] for one in ("value", "low", "high"))


def sentences(frame: pandas.DataFrame, policies: tuple[str, str], texts: list[Text]) -> list[str]:
    """The table in words, a sentence a measure and one of how sure it is."""
    a, b = policies
    said = []
    for measure, own in frame.groupby("measure", sort=False):
        name = WORDS.get(measure, str(measure).replace("_", " "))
        sign = "" if own.by.iloc[0] == "ratio" else "+"
        parts = [f"{row.value:{sign}.3g} [{row.low:.3g}, {row.high:.3g}] at {row.budget}"
                 for row in own.itertuples()]
        than = f"over that of {b} is" if own.by.iloc[0] == "ratio" else f"less that of {b} is"
        said.append(f"The {name} of {a} {than} {', '.join(parts)}.")
        equal = [f"{row.equal_bytes:{sign}.3g} [{row.equal_bytes_low:.3g}, {row.equal_bytes_high:.3g}] at "
                 f"{row.budget}" for row in own.itertuples() if not np.isnan(row.equal_bytes)]
        if equal:
            said.append(f"Where {a} holds the bytes of {b}, between its own budgets, it is {', '.join(equal)}.")
    off = frame[~frame.held.map(ranking.alike)]
    if len(off):
        cells = ", ".join(dict.fromkeys(f"{row.held:.3g} times at {row.budget}"
                                        for row in off.itertuples()))
        said.append(f"They do not hold alike: {a} holds, of what {b} holds, {cells}; such budgets are no "
                    "fair comparison.")
        nowhere = ", ".join(dict.fromkeys(off[off.equal_bytes.isna()].budget))
        if nowhere:
            said.append(f"At {nowhere} they cannot be compared at equal bytes: all budgets of {a} hold more, "
                        f"or all less, than {b}.")
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
        what A holds over what B holds, and whether they differ after Holm's correction.
    """
    given = as_list(results)
    if not given:
        raise UsageError("compare: found no results, expected at least one file")
    with exchange() as folder:
        opened = [open_results(as_file(one, folder, k)) for k, one in enumerate(given)]
    names = [metrics] if isinstance(metrics, str) else metrics
    wanted = [budgets] if isinstance(budgets, (str, int, float)) else budgets
    return compare_texts((str(a), str(b)), texts_of(opened), names,
                         [budget_text(one) for one in wanted] if wanted else None)
