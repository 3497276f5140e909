"""The grids in results files of sweeps: which keys of a preset vary, and what lies along each.

Axes come from the records themselves (attribute `config`), so that any file with several settings
of one preset has them. Files with the same policies are traces (or seeds) of one sweep.
"""

import json
import re
import warnings
from dataclasses import dataclass

import numpy as np

from . import load

# variable, what it is over the layers, label, is more better?
METRICS = (
    ("retained_importance_mean", np.nanmean, "retained importance,\nmean", True),
    ("retained_importance_min", np.nanmin, "retained importance,\nworst step and layer", True),
    ("output_error_mean", np.nanmean, "output error,\nmean", False),
    ("residual_error_max", np.nanmax, "residual error,\nworst step and layer", False),
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

    def __init__(self, preset, results, settings):
        self.preset = preset
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
        """Metrics that all files have and that differ between the records."""
        found = []
        for metric in METRICS:
            if all(one.has(metric[0]) for one in self.results):
                values = self.values(metric)
                if np.nanmax(np.ptp(values, axis=1), initial=0) > 1e-6:  # last bits do not count
                    found.append(metric)
        return found

    def values(self, metric):
        """The metric over the layers: traces x records x budgets; seeds of a trace averaged."""
        name, over_layers, _, _ = metric
        traces = {}
        for one in self.results:
            table = one.variable(name, "policy", "budget", "layer")
            table = table[[one.policies.index(record) for record in self.records]]
            table = table[:, [one.budget_labels().index(label) for label in self.budgets()]]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # nothing defined stays NaN
                table = over_layers(table, axis=2)
            traces.setdefault(one.data.attrs.get("trace_digest", str(one.path)), []).append(table)
        return np.array([np.mean(tables, axis=0) for tables in traces.values()])

    @property
    def subtitle(self):
        count = len({one.data.attrs.get("trace_digest", str(one.path)) for one in self.results})
        if count == 1:
            return self.results[0].subtitle
        model = self.results[0].subtitle.split(", ", 1)[0]
        return f"{model}, mean of {count} traces; bands: least to most over traces"


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


def grids(files, asked):
    """All grids in results files. Without `asked`, only files of `kvsim sweep` are looked at."""
    sweeps = {}
    for one in files:
        if asked or "sweep" in one.data.attrs:
            sweeps.setdefault(tuple(one.policies), []).append(one)
    found = []
    for policies, results in sweeps.items():
        for preset, settings in by_preset(results[0]).items():
            grid = Grid(preset, results, settings)
            if grid.axes and grid.budgets() and grid.metrics():
                found.append(grid)
    if not found:
        raise load.NotMeasured(f"{', '.join(str(one.path) for one in files)}: no preset with "
                               "several settings; kvsim sweep makes them")
    return found


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
