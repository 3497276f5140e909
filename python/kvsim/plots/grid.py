"""The grids in results files: which keys of a preset vary, and what lies along each.

Axes are those that the program wrote into the file (attribute `axes`, docs/results.md 3).
Files with the same policies are traces (or seeds) of one sweep.
"""

import json
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas

from ..plain import told_apart
from . import load, measures, statistics


class Metric(NamedTuple):
    """One number of a setting at a budget."""

    measure: str
    variable: str
    over_layers: str | None  # None: the variable is of all layers together
    label: str
    more_is_better: bool


METRICS = (
    Metric("stream_error", "stream_error_rms", None, "stream error,\nrms over steps", False),
    Metric("retained_importance", "retained_importance_mean", "mean",
           "retained importance,\nmean", True),
    Metric("retained_importance", "retained_importance_min", "min",
           "retained importance,\nworst step and layer", True),
    Metric("output_error", "output_error_mean", "mean", "output error,\nmean", False),
    Metric("residual_error", "residual_error_max", "max",
           "residual error,\nworst step and layer", False),
)


@dataclass
class Axis:
    """Keys of a record that vary together; `values` are tuples of their texts, in order, `base` the
    preset's own, or the middle one where that was not run."""

    keys: tuple
    values: list
    base: tuple

    @classmethod
    def read(cls, written):
        """An axis as the program wrote it, its values in the order in which they are drawn."""
        axis = cls(tuple(written["keys"]), list(map(tuple, written["values"])),
                   tuple(written["default"]))
        if any(len(value) != len(axis.keys) for value in (*axis.values, axis.base)):
            raise ValueError("a value per key")
        if all(map(is_number, (value[0] for value in axis.values))):
            axis.values.sort(key=lambda value: float(value[0]))
        if axis.base not in axis.values:
            axis.base = axis.values[len(axis.values) // 2]
        return axis

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
    """Records along one axis: {value of the axis: record}, in the order of the axis."""

    axis: Axis
    records: dict
    fixed: str  # what is not at its default, e.g. "prior=constant"


class Grid:
    """The settings of one preset in the files of one sweep."""

    def __init__(self, preset, results, axes, settings, shown):
        self.preset = preset
        self.shown = shown  # measures
        self.results = results  # one file per trace and seed, equal policies
        self.axes = axes
        # A row per record, a column per axis; cells are values of the axis.
        self.places = pandas.DataFrame(
            {axis.name: pandas.Series({record: tuple(keys.get(key) for key in axis.keys)
                                       for record, keys in settings.items()}) for axis in axes})
        for axis in axes:
            if not set(self.places[axis.name]) <= set(axis.values):
                raise load.data_error(f"{results[0].path}: attributes axes and config do not fit "
                                      f"together: {axis.name} of {preset}")
        self.moved = pandas.DataFrame({axis.name: self.places[axis.name].map(axis.base.__ne__)
                                       for axis in axes})

    @property
    def stem(self):
        return re.sub(r"[^A-Za-z0-9]+", "-", self.preset)

    @property
    def records(self):
        return self.places.index.tolist()

    @property
    def base(self):
        """The record with every axis at its default; None when it was not run."""
        return next(iter(self.places.index[~self.moved.any(axis=1)]), None)

    def lines(self):
        found = [self._line(axis) for axis in self.axes]
        return [line for line in found if line is not None]

    def _line(self, axis):
        """The records along an axis with the others at their defaults, or as near as there are."""
        others = [one for one in self.axes if one is not axis]
        names = [one.name for one in others]
        contexts = {}
        for record, place in zip(self.records, self.places[names].values.tolist()):
            contexts.setdefault(tuple(place), []).append(record)
        usable = [self.places.loc[records] for records in contexts.values() if len(records) > 1]
        if not usable:
            return None
        best = min(usable, key=lambda rows: (self.moved.loc[rows.index[0], names].sum(),
                                             -len(rows)))
        at = {value: record for record, value in best[axis.name].items()}
        first = best.index[0]
        fixed = ", ".join(f"{key}={text}" for one in others if self.moved.at[first, one.name]
                          for key, text in zip(one.keys, best.at[first, one.name]))
        return Line(axis, {value: at[value] for value in axis.values if value in at}, fixed)

    def planes(self):
        """(axis of rows, axis of columns, records [row, column]) of pairs that are crossed."""
        found = []
        for a, rows in enumerate(self.axes):
            for columns in self.axes[a + 1:]:
                table = self._plane(rows, columns)
                if table is not None:
                    found.append((rows, columns, table))
        return found

    def _plane(self, rows, columns):
        """Others at their defaults; None where nothing was run. None unless most was."""
        others = self.moved.drop(columns=[rows.name, columns.name])
        table = np.full((len(rows.values), len(columns.values)), None)
        for record, place in self.places[~others.any(axis=1)].iterrows():
            table[rows.values.index(place[rows.name]),
                  columns.values.index(place[columns.name])] = record
        run = table != None  # noqa: E711  (of every cell)
        whole = run.sum(axis=1).min() > 1 and run.sum(axis=0).min() > 1
        return table if whole and run.mean() > 0.7 else None

    def budgets(self):
        """Labels of the budgets that all files have and that drop something."""
        first = self.results[0]
        return [label for label, ratio in zip(first.budget_labels(), first.budgets)
                if ratio < 1 and all(label in one.budget_labels() for one in self.results)]

    def nearest_budget(self, wanted):
        first, labels = self.results[0], self.budgets()
        order = np.argsort(np.abs(first.budgets - first.nearest_budget(wanted)))
        return next(label for i in order if (label := first.budget_labels()[i]) in labels)

    def budget_text(self, label):
        texts = {one.budget_text(one.budgets[one.budget_labels().index(label)])
                 for one in self.results}
        # A count is another ratio of a prompt of another length.
        return texts.pop() if len(texts) == 1 else f"{label} tokens"

    def metrics(self):
        """Metrics of the measures to draw, in their order, that differ between the records."""
        found = []
        for metric in sorted((one for one in METRICS if one.measure in self.shown),
                             key=lambda one: self.shown.index(one.measure)):
            if all(one.has(metric.variable) for one in self.results):
                values = self.values(metric)
                spread = values.max("policy") - values.min("policy")
                if spread.max() > 1e-6:  # last bits do not count
                    found.append(metric)
        return found

    def values(self, metric):
        """[trace, policy, budget label]: the metric over the layers; seeds of a trace averaged."""
        layered = ("layer",) if metric.over_layers else ()
        traces = {}
        for one in self.results:
            table = one.variable(metric.variable, "policy", "budget", *layered)
            table = table.assign_coords(budget=one.budget_labels())
            table = table.sel(policy=self.records, budget=self.budgets())
            if metric.over_layers:
                table = getattr(table, metric.over_layers)("layer")
            traces.setdefault(one.data.attrs.get("trace_digest", str(one.path)), []).append(table)
        seeds = [load.stacked(tables, "seed") for tables in traces.values()]
        return load.stacked([one.mean("seed") if metric.over_layers
                             else np.sqrt((one ** 2).mean("seed")) for one in seeds], "trace")

    def over_traces(self, metric):
        """[policy, budget label]: mean over traces, of errors the geometric one."""
        values = self.values(metric).transpose(..., "trace")
        mean, _ = statistics.over_traces(values, "plain" if metric.more_is_better else "log")
        return values.isel(trace=0, drop=True).copy(data=mean)

    @property
    def traces(self):
        return len({one.data.attrs.get("trace_digest", str(one.path)) for one in self.results})

    @property
    def subtitle(self):
        of_one = self.results[0].subtitle
        model = of_one.split(", ", 1)[0]
        return (of_one if self.traces == 1 else f"{model}, mean of {self.traces} traces (errors: geometric)") + \
            measures.layers_note(self.results, self.shown)


def is_number(text):
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) is not None


def spread(listed, most):
    """At most so many of a list, evenly spread from its first to its last."""
    places = np.linspace(0, len(listed) - 1, most)
    return [listed[at] for at in sorted({round(place) for place in places})]


def left_out(listed, shown):
    """Words of a subtitle on budgets that have no place: nothing where all are shown."""
    return f"; {len(shown)} of {len(listed)} budgets" if len(shown) < len(listed) else ""


def written(results):
    """{preset: [Axis]} from the attribute `axes`; Missing in files of programs that wrote none."""
    if "axes" not in results.data.attrs:
        raise load.Missing(f"{results.path}: no attribute axes, so an older kvsim wrote it; run "
                           "the sweep again")
    try:
        return {preset: [Axis.read(axis) for axis in axes]
                for preset, axes in json.loads(results.data.attrs["axes"]).items()}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise load.data_error(f"{results.path}: attribute axes is not a list of axes per preset, "
                              "each with keys, values and default") from None


def grids(files, options):
    """All grids in results files. Unless figures are named, only files of `kvsim sweep` count."""
    sweeps, asked = {}, options.only
    for one in files:
        if asked or "sweep" in one.data.attrs:
            sweeps.setdefault(tuple(one.policies), []).append(one)
    found = []
    for policies, results in sweeps.items():
        presets = {preset: settings for preset, settings in by_preset(results[0]).items()
                   if len(settings) > 1}
        axes = written(results[0]) if presets else {}
        for preset, settings in presets.items():
            if not axes.get(preset):
                continue
            grid = Grid(preset, results, axes[preset], settings,
                        measures.of_files(results, options))
            if grid.budgets():
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
    """{preset: {record: {key: value}}}."""
    presets = {}
    for one in load.entries(results.data):
        if one["record"] in results.policies:
            presets.setdefault(one["title"], {})[one["record"]] = one["parameters"]
    return presets


def stems(name, found):
    """File names of grids: name-PRESET, numbered where a preset comes twice."""
    return told_apart(f"{name}-{grid.stem}" for grid in found)
