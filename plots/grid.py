"""The grids in results files of sweeps: which keys of a preset vary, and what lies along each.

Axes come from the records themselves (attribute `config`), so that any file with several settings
of one preset has them. Files with the same policies are traces (or seeds) of one sweep.
"""

import json
import re
import warnings
from dataclasses import dataclass
from typing import Callable, NamedTuple, Optional

import numpy as np

from . import load, measures


class Metric(NamedTuple):
    """One number of a setting at a budget."""

    measure: str
    variable: str
    over_layers: Optional[Callable]  # None: the variable is of all layers together
    label: str
    more_is_better: bool


METRICS = (
    Metric("stream_error", "stream_error_rms", None, "stream error,\nrms over steps", False),
    Metric("retained_importance", "retained_importance_mean", np.nanmean,
           "retained importance,\nmean", True),
    Metric("retained_importance", "retained_importance_min", np.nanmin,
           "retained importance,\nworst step and layer", True),
    Metric("output_error", "output_error_mean", np.nanmean, "output error,\nmean", False),
    Metric("residual_error", "residual_error_max", np.nanmax,
           "residual error,\nworst step and layer", False),
)


@dataclass
class Axis:
    """Keys of a record that vary together; `values` are tuples of their texts, in order."""

    keys: tuple
    values: list
    base: tuple

    @property
    def name(self):
        return " and ".join(self.keys)

    @property
    def numbers(self):
        """The values as numbers; None when any is a word."""
        if len(self.keys) > 1 or not all(is_number(value[0]) for value in self.values):
            return None
        return [float(value[0]) for value in self.values]

    def text(self, value):
        return ", ".join(value)


@dataclass
class Line:
    """Records along one axis: (place of the value on the axis, index of the record)."""

    axis: Axis
    points: list
    fixed: str  # what is not at its default, e.g. "prior=constant"


class Grid:
    """The settings of one preset in the files of one sweep."""

    def __init__(self, preset, results, settings, shown):
        self.preset = preset
        self.shown = shown  # measures
        self.results = results  # one file per trace and seed, equal policies
        self.settings = settings  # {record: {key: value}}
        self.records = list(settings)
        self.axes = axes_of(self.records, settings)

    @property
    def stem(self):
        return re.sub(r"[^A-Za-z0-9]+", "-", self.preset)

    def place(self, record):
        """The value on each axis."""
        return tuple(tuple(self.settings[record][key] for key in axis.keys) for axis in self.axes)

    @property
    def base(self):
        """Index of the record with every axis at its default; None when it was not run."""
        wanted = tuple(axis.base for axis in self.axes)
        return next((i for i, record in enumerate(self.records) if self.place(record) == wanted),
                    None)

    def lines(self):
        found = [self._line(k) for k in range(len(self.axes))]
        return [line for line in found if line is not None]

    def _line(self, k):
        """The records along axis k with the others at their defaults, or as near as there are."""
        contexts = {}
        for i, record in enumerate(self.records):
            place = self.place(record)
            contexts.setdefault(place[:k] + place[k + 1:], {})[place[k]] = i
        others = self.axes[:k] + self.axes[k + 1:]

        def moved(context):
            return [(axis, value) for axis, value in zip(others, context) if value != axis.base]
        usable = [context for context, along in contexts.items() if len(along) > 1]
        if not usable:
            return None
        best = min(usable, key=lambda one: (len(moved(one)), -len(contexts[one])))
        fixed = ", ".join(f"{key}={one}" for axis, value in moved(best)
                          for key, one in zip(axis.keys, value))
        axis = self.axes[k]
        points = [(at, contexts[best][value]) for at, value in enumerate(axis.values)
                  if value in contexts[best]]
        return Line(axis, points, fixed)

    def planes(self):
        """(axis of rows, axis of columns, record indices) of pairs that are crossed."""
        found = []
        for a in range(len(self.axes)):
            for b in range(a + 1, len(self.axes)):
                table = self._plane(a, b)
                if table is not None:
                    found.append((self.axes[a], self.axes[b], table))
        return found

    def _plane(self, a, b):
        """Others at their defaults; -1 where nothing was run. None unless most was."""
        rows, columns = self.axes[a], self.axes[b]
        table = np.full((len(rows.values), len(columns.values)), -1)
        for i, record in enumerate(self.records):
            place = self.place(record)
            if all(place[k] == axis.base for k, axis in enumerate(self.axes) if k not in (a, b)):
                table[rows.values.index(place[a]), columns.values.index(place[b])] = i
        table = table[(table >= 0).sum(axis=1) > 1][:, (table >= 0).sum(axis=0) > 1]
        complete = table.shape == (len(rows.values), len(columns.values))
        return table if complete and np.mean(table >= 0) > 0.7 and table.size >= 4 else None

    def budgets(self):
        """Labels of the budgets that all files have and that drop something."""
        first = self.results[0]
        return [label for label, ratio in zip(first.budget_labels(), first.budgets)
                if ratio < 1 and all(label in one.budget_labels() for one in self.results)]

    def nearest_budget(self, wanted):
        first, labels = self.results[0], self.budgets()
        order = np.argsort(np.abs(first.budgets - first.budgets[first.nearest_budget(wanted)]))
        return next(label for i in order if (label := first.budget_labels()[i]) in labels)

    def budget_text(self, label):
        texts = {one.budget_text(one.budget_labels().index(label)) for one in self.results}
        # A count is another ratio of a prompt of another length.
        return texts.pop() if len(texts) == 1 else f"{label} tokens"

    def metrics(self):
        """Metrics of the measures to draw, in their order, that differ between the records."""
        found = []
        for metric in sorted((one for one in METRICS if one.measure in self.shown),
                             key=lambda one: self.shown.index(one.measure)):
            if all(one.has(metric.variable) for one in self.results):
                values = self.values(metric)
                if np.nanmax(np.ptp(values, axis=1), initial=0) > 1e-6:  # last bits do not count
                    found.append(metric)
        return found

    def values(self, metric):
        """The metric over the layers: traces x records x budgets; seeds of a trace averaged."""
        layered = ("layer",) if metric.over_layers else ()
        traces = {}
        for one in self.results:
            table = one.variable(metric.variable, "policy", "budget", *layered)
            table = table[[one.policies.index(record) for record in self.records]]
            table = table[:, [one.budget_labels().index(label) for label in self.budgets()]]
            if metric.over_layers:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # nothing defined stays NaN
                    table = metric.over_layers(table, axis=2)
            traces.setdefault(one.data.attrs.get("trace_digest", str(one.path)), []).append(table)
        average = np.mean if metric.over_layers else root_mean_square
        return np.array([average(tables, axis=0) for tables in traces.values()])

    @property
    def traces(self):
        return len({one.data.attrs.get("trace_digest", str(one.path)) for one in self.results})

    @property
    def subtitle(self):
        of_one = self.results[0].subtitle
        model = of_one.split(", ", 1)[0]
        return (of_one if self.traces == 1 else f"{model}, mean of {self.traces} traces") + \
            measures.layers_note(self.results, self.shown)


def root_mean_square(values, axis):
    return np.sqrt(np.mean(np.square(values), axis=axis))


def is_number(text):
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) is not None


def axes_of(records, settings):
    keys = [key for key in settings[records[0]]
            if len({settings[record][key] for record in records}) > 1]
    series = {key: [settings[record][key] for record in records] for key in keys}

    def follows(key, other):
        return len(set(zip(series[other], series[key]))) == len(set(series[other]))
    tied, groups = set(), []
    for key in keys:
        if key in tied:
            continue
        equal = [other for other in keys if follows(key, other) and follows(other, key)]
        tied.update(equal)
        # A key that another one decides, such as the votes of a merge, is no axis of its own.
        if not any(follows(key, other) for other in keys if other not in equal):
            groups.append(tuple(equal))
    return [axis_of(group, records, series) for group in groups]


def axis_of(keys, records, series):
    values = list(dict.fromkeys(zip(*(series[key] for key in keys))))
    if all(is_number(value[0]) for value in values):
        values.sort(key=lambda value: float(value[0]))
    # A record names what differs from its preset, so that a key it does not name is at its default.
    for i, record in enumerate(records):
        if not any(re.search(rf"(^|,){key}=", record) for key in keys):
            return Axis(keys, values, tuple(series[key][i] for key in keys))
    return Axis(keys, values, values[len(values) // 2])


def grids(files, options):
    """All grids in results files. Unless figures are named, only files of `kvsim sweep` count."""
    sweeps, asked = {}, options.only
    for one in files:
        if asked or "sweep" in one.data.attrs:
            sweeps.setdefault(tuple(one.policies), []).append(one)
    found = []
    for policies, results in sweeps.items():
        for preset, settings in by_preset(results[0]).items():
            grid = Grid(preset, results, settings, measures.of_files(results, options))
            if grid.axes and grid.budgets():
                found.append(grid)
    where = ", ".join(str(one.path) for one in files)
    if not found:
        raise load.NotMeasured(f"{where}: no preset with several settings; kvsim sweep makes them")
    told_apart = [grid for grid in found if grid.metrics()]
    if not told_apart:
        names = ", ".join(map(measures.words, found[0].shown)) or "no measure"
        raise load.NotMeasured(f"{where}: all settings are equal by {names}")
    return told_apart


def by_preset(results):
    """{preset: {record: {key: value}}} from the attribute `config`."""
    presets = {}
    try:
        for one in json.loads(results.data.attrs["config"])["policies"]:
            if one["record"] in results.policies:
                name = one["preset"] + (":" + one["variant"] if one.get("variant") else "")
                presets.setdefault(name, {})[one["record"]] = dict(one["parameters"])
    except (KeyError, TypeError, ValueError):
        return {}
    return presets


def stems(name, found):
    """File names of grids: name-PRESET, numbered where a preset comes twice."""
    result, taken = [], {}
    for grid in found:
        stem = f"{name}-{grid.stem}"
        taken[stem] = taken.get(stem, 0) + 1
        result.append(stem if taken[stem] == 1 else f"{stem}-{taken[stem]}")
    return result
