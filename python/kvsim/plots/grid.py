"""The grids in results files: which keys of a preset vary, and what lies along each.

Axes are those that the program wrote into the file (attribute `axes`, docs/results.md 3).
Files with the same policies are traces (or seeds) of one sweep."""

import itertools
import json
import re
from dataclasses import dataclass

import numpy as np
import pandas

from ..errors import DataError
from ..plain import told_apart
from . import load, measures, statistics

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
METRICS = tuple(one for one in measures.SUMMARIES if one.variable != "output_error_max")


class Axis:
    """Keys of a record that vary together, as the program wrote them. `values` are tuples of their texts in the order in
    which they are drawn, `base` the preset's own, or the middle one where that was not run."""

    def __init__(self, written):
        self.keys, self.base = tuple(written["keys"]), tuple(written["default"])
        self.values = list(map(tuple, written["values"]))
        if any(len(value) != len(self.keys) for value in (*self.values, self.base)):
            raise ValueError("a value per key")
        ordered = all(NUMBER.fullmatch(value[0]) for value in self.values)
        if ordered:
            self.values.sort(key=lambda value: float(value[0]))
        if self.base not in self.values:
            self.base = self.values[len(self.values) // 2]
        self.name = " and ".join(self.keys)
        self.numbers = ordered and len(self.keys) == 1   # are the values numbers?


@dataclass
class Line:
    """Records along one axis: {value of the axis: record}, in the order of the axis."""

    axis: Axis
    records: dict
    fixed: str  # what is not at its default, e.g. "prior=constant"

    @property
    def name(self):
        return f"{self.axis.name}\nat {self.fixed}" if self.fixed else self.axis.name


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
                raise DataError(f"{results[0].path}: attributes axes and config do not fit "
                                f"together: {axis.name} of {preset}")
        self.moved = pandas.DataFrame({axis.name: self.places[axis.name].map(axis.base.__ne__) for axis in axes})
        self.records = self.places.index.tolist()
        # The record with every axis at its default; None when it was not run.
        self.base = next(iter(self.places.index[~self.moved.any(axis=1)]), None)
        # Labels of the budgets that all files have and that drop something.
        self.budgets = [label for label, ratio in zip(results[0].budget_labels(), results[0].budgets)
                        if ratio < 1 and all(label in one.budget_labels() for one in results)]
        self.traces = len({one.digest for one in results})

    def lines(self):
        """Lines along every axis with the others at their defaults, or as near as there are."""
        found = []
        for axis in self.axes:
            others = [one for one in self.axes if one is not axis]
            names = [one.name for one in others]
            contexts = self.places.groupby(names, sort=False) if names else [((), self.places)]
            usable = [rows for _, rows in contexts if len(rows) > 1]
            if not usable:
                continue
            best = min(usable, key=lambda rows: (self.moved.loc[rows.index[0], names].sum(), -len(rows)))
            at = {value: record for record, value in best[axis.name].items()}
            first = best.index[0]
            fixed = ", ".join(f"{key}={text}" for one in others if self.moved.at[first, one.name]
                              for key, text in zip(one.keys, best.at[first, one.name]))
            found.append(Line(axis, {value: at[value] for value in axis.values if value in at}, fixed))
        return found

    def planes(self):
        """(axis of rows, axis of columns, records [row, column]) of pairs that are crossed, the others at
        their defaults: most was run, and None stands where nothing was."""
        found = []
        for rows, columns in itertools.combinations(self.axes, 2):
            others = self.moved.drop(columns=[rows.name, columns.name])
            own = self.places.loc[~others.any(axis=1), [rows.name, columns.name]]
            records = {tuple(place): record for record, place in zip(own.index, own.values.tolist())}
            table = np.array([[records.get((a, b)) for b in columns.values] for a in rows.values], object)
            run = table != None  # noqa: E711  (of every cell)
            if run.sum(axis=1).min() > 1 and run.sum(axis=0).min() > 1 and run.mean() > 0.7:
                found.append((rows, columns, table))
        return found

    def nearest_budget(self, wanted):
        first, labels = self.results[0], self.results[0].budget_labels()
        order = np.argsort(np.abs(first.budgets - first.nearest_budget(wanted)))
        return next(labels[i] for i in order if labels[i] in self.budgets)

    def budget_text(self, label):
        texts = {one.budget_text(one.budgets[one.budget_labels().index(label)]) for one in self.results}
        # A count is another ratio of a prompt of another length.
        return texts.pop() if len(texts) == 1 else f"{label} tokens"

    def left_out(self, shown):
        """Words of a subtitle on budgets that have no place: nothing where all are shown."""
        count = len(self.budgets)
        return f"; {len(shown)} of {count} budgets" if len(shown) < count else ""

    def metrics(self):
        """Metrics of the measures to draw, in their order, that differ between the records."""
        there = [one for name in self.shown for one in METRICS
                 if one.measure == name and all(results.has(one.variable) for results in self.results)]
        values = [self.values(one) for one in there]   # last bits do not count
        return [one for one, own in zip(there, values) if (own.max("policy") - own.min("policy")).max() > 1e-6]

    def label(self, metric):
        """Of a small panel, where a mean is always one over steps and layers."""
        return metric.title(self.results[0].layers).replace(" over steps and layers", "")

    def values(self, metric):
        """[trace, policy, budget label]: the metric over the layers; seeds of a trace averaged."""
        traces = {}
        for one in self.results:
            table = metric.table(one).assign_coords(budget=one.budget_labels())
            traces.setdefault(one.digest, []).append(table.sel(policy=self.records, budget=self.budgets))
        seeds = [load.stacked(tables, "seed") for tables in traces.values()]
        return load.stacked([one.mean("seed") if metric.over_layers
                             else np.sqrt((one ** 2).mean("seed")) for one in seeds], "trace")

    def over_traces(self, metric):
        """[policy, budget label]: mean over traces, of errors the geometric one."""
        values = self.values(metric).transpose(..., "trace")
        mean, _ = statistics.over_traces(values, "plain" if metric.more_is_better else "log")
        return values.isel(trace=0, drop=True).copy(data=mean)

    @property
    def subtitle(self):
        first = self.results[0]
        return (first.subtitle if self.traces == 1 else
                f"{first.model}, mean of {self.traces} traces (errors: geometric)") + \
            measures.layers_note(self.results, self.shown)


def written(results):
    """{preset: [Axis]} from the attribute `axes`; Missing in files of programs that wrote none."""
    if "axes" not in results.data.attrs:
        raise load.Missing(f"{results.path}: no attribute axes, so an older kvsim wrote it; run the sweep again")
    try:
        return {preset: list(map(Axis, axes)) for preset, axes in json.loads(results.data.attrs["axes"]).items()}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise DataError(f"{results.path}: attribute axes is not a list of axes per preset, "
                        "each with keys, values and default") from None


def grids(figure, files, options):
    """{file name: Grid} of all grids in results files. Unless figures are named, only files of `kvsim sweep` count."""
    sweeps, found = {}, []
    for one in files:
        if options.only or "sweep" in one.data.attrs:
            sweeps.setdefault(tuple(one.policies), []).append(one)
    for policies, results in sweeps.items():
        presets = {}
        for one in load.entries(results[0].data):
            if one["record"] in policies:
                presets.setdefault(one["title"], {})[one["record"]] = one["parameters"]
        varied = {preset: settings for preset, settings in presets.items() if len(settings) > 1}
        axes = written(results[0]) if varied else {}
        found += [Grid(preset, results, axes[preset], settings, measures.of_files(results, options))
                  for preset, settings in varied.items() if axes.get(preset)]
    found = [one for one in found if one.budgets]
    where = ", ".join(str(one.path) for one in files)
    if not found:
        raise load.NotMeasured(f"{where}: no preset with several settings; kvsim sweep makes them")
    differ = [one for one in found if one.metrics()]
    if not differ:
        names = ", ".join(map(measures.words, found[0].shown)) or "no measure"
        raise load.NotMeasured(f"{where}: all settings are equal by {names}")
    stems = told_apart(f"{figure}-{re.sub('[^A-Za-z0-9]+', '-', one.preset)}" for one in differ)
    return dict(zip(stems, differ))
