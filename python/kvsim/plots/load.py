"""Opens results files. Mistakes become exceptions with one line and the exit code of kvsim."""

import json
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath

import h5py
import numpy as np
import xarray

from ..budgets import find_budget, parse_budget
from ..errors import DataError, line_of
from ..hdf5_file import check_regular, open_hdf5, refuse_links, unreadable
from ..plain import printable, read_text

VERSION = 1   # of results files, the latest that is read
DIMENSIONS = ("policy", "budget", "layer", "step")
#: Its name in messages.
RESULTS_FILE = "results file of kvsim"


def read_dataset(source, path):
    """`source`: the path, or a file in memory that was read from there."""
    try:
        with (open_hdf5(path) if source is path else h5py.File(source, "r")) as file:
            if str(file.attrs.get("format")) in ("kvtrace", "b'kvtrace'"):
                raise DataError(f"{path}: a trace stands where results are expected: expected a "
                                f"{RESULTS_FILE} (kvsim replay makes results of a trace)")
            refuse_links(file)
        # Units such as "s" must stay numbers, hence no decoding of times.
        data = xarray.open_dataset(source, engine="h5netcdf", decode_times=False,
                                   phony_dims="access")   # of a file of something else: no warning
        # Other writers of netCDF know no scalars among attributes.
        return data.assign_attrs({name: value.reshape(-1)[0] for name, value in data.attrs.items()
                                  if isinstance(value, np.ndarray) and value.size == 1})
    except DataError:
        raise
    except Exception as error:  # h5py, h5netcdf and xarray each have their own kinds
        raise unreadable(path, f"a {RESULTS_FILE}", error) from error


class Missing(Exception):
    """The file is fine but lacks what one figure needs; other figures can still be drawn."""


class NotMeasured(Missing):
    """The run was not asked to measure it: nothing to be told unless the figure was asked for."""


@dataclass
class Document:
    """Output of a command with --json, such as `kvsim explain --json`."""

    path: Path
    kind: str
    data: dict


@dataclass
class Loop:
    """Measurements of kvsim closed-loop on a trace: the model's own loss, without layers."""

    path: Path
    data: xarray.Dataset


@dataclass
class Results:
    """One results file, cut down to the policies and layers that were asked for."""

    path: Path
    data: xarray.Dataset
    run_policies: tuple   # records of the run, those that are not asked for among them
    run_layers: int
    loops: list = field(default_factory=list)   # of the same trace, given beside the file

    def __post_init__(self):
        told = self.data.attrs
        self.policies = list(map(str, self.data["policy"].values))
        self.spans = list(map(str, self.data["span"].values)) if "span" in self.data else []
        self.layers = list(map(int, self.data["layer"].values))
        self.budgets = np.asarray(self.data["budget"].values, np.float64)
        self.steps = np.asarray(self.data["step"].values)
        model = str(told.get("model", "")) or "model not recorded"
        # A folder on somebody's machine says nothing to a reader.
        self.model = Path(model).name if model.startswith("/") else model
        self.trace = PureWindowsPath(str(told.get("trace", self.path.stem))).name
        self.name = self.trace.removesuffix(".h5")   # for legends of several traces
        self.digest = str(told.get("trace_digest", self.path))   # of the trace

    @property
    def stream_layers(self):
        """The layers that stream error is of, e.g. "8 of 30 layers"; "" when they are all."""
        of_model = self.data.attrs.get("num_layers")
        if of_model is None:
            return f"the {self.run_layers} captured layers"
        return f"{self.run_layers} of {int(of_model)} layers" if self.run_layers < int(of_model) else ""

    @property
    def subtitle(self):
        """Model, prompt length n, number of later steps T and trace: what every figure says."""
        n = self.data.attrs.get("prompt_len", "?")
        return f"{self.model}, n = {n} prompt tokens, T = {self.steps.size} later steps, trace {self.trace}"

    def variable(self, name, *dims):
        """The variable as a labelled array of float64 in the order of `dims`; Missing when the file lacks it."""
        self.need(name)
        array = self.data[name]
        if set(array.dims) != set(dims):
            raise DataError(f"{self.path}: {name} has dimensions ({', '.join(array.dims)}), "
                            f"expected ({', '.join(dims)})")
        try:
            return array.transpose(*dims).astype(np.float64)
        except (OSError, ValueError, RuntimeError) as error:
            raise DataError(f"{self.path}: cannot read {name}: {line_of(error)}") from error

    @property
    def loop_losses(self):
        """[policy, budget]: mean KL divergence of the closed loops; NaN where none was run. Of the
        answer alone where the file tells it from the request after the point of compression."""
        return self.of_loops(lambda data: data["kl_divergence_answer"]
                             if "kl_divergence_answer" in data
                             else data["kl_divergence"].mean("step"))

    def of_loops(self, choose):
        """[policy, budget(, step)] of what `choose(dataset)` takes of the closed loops (None:
        nothing), in the order of these results; NaN where none was run."""
        shape = {"policy": self.policies, "budget": self.budget_labels()}
        found = xarray.DataArray(np.nan, shape, list(shape))
        for loop in self.loops:
            array = choose(loop.data)
            if array is None:
                continue
            if "step" in array.dims:
                array = array.reindex(step=self.steps)
            array = array.assign_coords(budget=list(map(str, loop.data["budget_label"].values)))
            own = array.drop_duplicates(list(shape)).reindex(shape).transpose(*shape, ...)
            found = own.fillna(found) if own.ndim >= found.ndim else found.fillna(own)
        return found.assign_coords(budget=self.budgets)

    def loop_variable(self, name):
        """[policy, budget(, step)] of a variable of the closed loops; NaN where none was run."""
        return self.of_loops(lambda data: data.get(name)).values

    def has(self, *names):
        """Has the file these variables, with any numbers?"""
        return all(name in self.data.variables and self.data[name].size for name in names)

    def need(self, *names, kind=Missing):
        """Missing unless the file has all of these variables."""
        for name in names:
            if not self.has(name):
                raise kind(f"{self.path}: no variable {name}")

    def nearest_budget(self, wanted):
        """The budget nearest to `wanted`: a ratio (0.5, 50%) or a count of tokens; None: to 0.5."""
        ratio = self.ratio_of("0.5" if wanted is None else wanted)
        return self.budgets[np.argmin(np.abs(self.budgets - ratio))]

    def ratio_of(self, wanted):
        """The ratio of a budget as it is typed: that of the file where it has this text."""
        at = find_budget(wanted, self.budget_labels())
        if at is not None:
            return self.budgets[at]
        value, is_count = parse_budget(wanted)
        if not is_count:
            return value
        try:
            return min(1.0, value / float(self.data.attrs["prompt_len"]))
        except (KeyError, ValueError, ZeroDivisionError):
            raise DataError(f"{self.path}: no attribute prompt_len; "
                            f"give --budget as a ratio instead of {wanted}") from None

    def budget_labels(self):
        """The text of each budget, or the ratio where the file does not say."""
        if "budget_label" in self.data.variables:
            return [str(label) for label in self.data["budget_label"].values]
        return [f"{ratio:g}" for ratio in self.budgets]

    def budget_text(self, budget):
        label = self.budget_labels()[self.budgets.tolist().index(budget)]
        return f"{label} tokens (ratio {budget:.3g})" if label.isdigit() else label

    @property
    def budgets_are_counts(self):
        return all(label.isdigit() for label in self.budget_labels())


def open_results(path, layers=None, policies=None):
    """Opens one results file; `layers` (numbers) and `policies` (records) choose a part of it.

    A file of kvsim closed-loop comes back as a Loop, whole."""
    path = Path(path)
    data = read_dataset(path, path)
    version = data.attrs.get("results_version", 1)   # files of before there were versions: 1
    if not isinstance(version, (int, np.integer)) or not 1 <= version <= VERSION:
        raise DataError(f"{path}: results of another version: found version {version}, of kvsim "
                        f"{data.attrs.get('kvsim_version', 'unknown')}, expected 1 to {VERSION}; "
                        "a later kvsim reads it, or replay the trace again")
    if is_loop(data):
        for name in ("policy", "budget_label", "step", "kl_divergence"):
            if name not in data.variables:
                raise DataError(f"{path}: no variable {name}; is this a file of kvsim closed-loop?")
        if set(data["kl_divergence"].dims) != {"policy", "budget", "step"}:
            raise DataError(f"{path}: kl_divergence has dimensions ({', '.join(data['kl_divergence'].dims)}), "
                            "expected (policy, budget, step)")
        return Loop(path, data)
    for name in DIMENSIONS:
        if name not in data.dims or name not in data.variables:
            raise DataError(f"{path}: no dimension {name} with a coordinate; is this a results file of kvsim replay?")
        if data.sizes[name] == 0:
            raise DataError(f"{path}: dimension {name} is empty")
    run = tuple(map(str, data["policy"].values)), data.sizes["layer"]
    for dimension, wanted in (("layer", layers or ()), ("policy", policies or ())):
        present = data[dimension].values.tolist()
        for value in wanted:
            if value not in present:
                raise DataError(f"{path}: no {dimension} {value}; the file has {', '.join(map(str, present))}")
        if wanted:
            data = data.isel({dimension: [present.index(value) for value in dict.fromkeys(wanted)]})
    return Results(path, data, *run)


def shown(data):
    """The dataset with names as figures and messages may show them: docs/security.md."""
    for axis in ("policy", "span"):
        if axis in data.coords and data[axis].dtype.kind in "OUT":
            attributes = data[axis].attrs
            data = data.assign_coords({axis: np.array([printable(one) for one in data[axis].values], dtype=object)})
            data[axis].attrs = attributes
    return data.assign_attrs({name: printable(value) if name in ("model", "trace") else value
                              for name, value in data.attrs.items()})


def is_loop(data):
    """Is this dataset what `kvsim closed-loop` found?"""
    return not {"kl_divergence", "kl_divergence_mean"}.isdisjoint(data.variables) and "layer" not in data.dims


def join_loops(opened):
    """The results files among `opened`, each with the closed loops of its own trace beside it that
    have one of its policies."""
    results = [one for one in opened if not isinstance(one, Loop)]
    for loop in (one for one in opened if isinstance(one, Loop)):
        told = loop.data.attrs
        name = told.get("trace", "not recorded")
        if not results:
            raise DataError(f"{loop.path}: losses of a closed loop alone; give the results file "
                            f"that it was run with, too (trace {name})")
        of_trace = [one for one in results if isinstance(one, Results) and "trace_digest" in told
                    and all(one.data.attrs.get(key) == told.get(key) for key in ("trace_digest", "later"))]
        if not of_trace:
            raise DataError(f"{loop.path}: closed loop of a trace ({name}) that none of the results files is of")
        policies = {str(one) for one in loop.data["policy"].values}
        own = [one for one in of_trace if policies & set(one.run_policies)]
        if not own:
            raise DataError(f"{loop.path}: closed loop of other policies than those of "
                            f"{of_trace[0].path}: found {', '.join(sorted(policies))}")
        for one in own:
            one.loops.append(loop)
    return results


def entries(data):
    """What the attribute `config` says of each policy; nothing of files without it."""
    found = []
    try:
        for one in json.loads(data.attrs["config"])["policies"]:
            variant = f":{one['variant']}" if one.get("variant") else ""
            found.append(one | {"record": one["record"], "parameters": dict(one["parameters"]),
                                "title": one.get("preset", "") + variant})
    except (AttributeError, KeyError, TypeError, ValueError):
        return []
    return found


def parameters(results):
    """{record: all its keys and their values}, of the policies in their order."""
    known = {one["record"]: one["parameters"] for one in entries(results.data)}
    return {record: known[record] for record in results.policies if record in known}


def alike(results, ignores):
    """[{record: its keys}]: records whose keys are equal, but for those that `ignores(key)` is true of."""
    groups = {}
    for record, keys in parameters(results).items():
        own = tuple(sorted(item for item in keys.items() if not ignores(item[0])))
        groups.setdefault(own, {})[record] = keys
    return list(groups.values())


def is_full(record):
    """Is this the policy that keeps everything? It is a reference line, not a competitor."""
    return record.replace(":", ",").split(",")[0] == "full"


def competitors(policies):
    """The policies but for those that keep everything; NotMeasured without any."""
    found = [one for one in policies if not is_full(one)]
    if not found:
        raise NotMeasured("no policy that drops entries")
    return found


def names(several):
    """Short names of the traces of several results files, all different."""
    plain = [results.name for results in several]
    return [name if plain.count(name) == 1 else f"{name} ({results.path.stem})"
            for name, results in zip(plain, several)]


def stacked(arrays, dim):
    """Arrays of several files or measures, alike in their coordinates, along a new dimension."""
    return xarray.concat(arrays, dim, coords="minimal", compat="override", join="exact")


LENGTHS_ALIKE = 0.05   # share by which lengths of traces that are pooled may differ


def check_poolable(several):
    """Missing where means over these files would mix what differs: other layers, or prompts or later
    steps whose lengths are further apart than a twentieth."""
    def shape(one):
        of_model = one.data.attrs.get("num_layers")
        return {"layers": f"{len(one.layers)}" + ("" if of_model is None else f" of {int(of_model)}"),
                "prompt tokens": int(one.data.attrs.get("prompt_len", 0)), "later steps": one.steps.size}

    first, own = several[0], shape(several[0])
    for other in several[1:]:
        theirs = shape(other)
        for what, one in own.items():
            same = (first.layers, first.run_layers, one) == (other.layers, other.run_layers, theirs[what]) \
                if what == "layers" else max(one, theirs[what]) <= (1 + LENGTHS_ALIKE) * min(one, theirs[what])
            if other.digest != first.digest and not same:
                raise Missing(f"means over files would mix what differs: {first.path} has {one} {what}, "
                              f"{other.path} {theirs[what]}; --pool does so all the same")


def common_policies(several):
    """Records that all results files have, in the order of the first; Missing without any."""
    common = [one for one in several[0].policies if all(one in other.policies for other in several)]
    if not common:
        raise Missing("the files have no policy in common: " + ", ".join(str(results.path) for results in several))
    return common


def open_document(path):
    """Opens the JSON of a command; its field `kvsim` names the command."""
    path = Path(path)
    check_regular(path)
    try:
        data = json.loads(read_text(path))
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {line_of(error)}") from error
    if not isinstance(data, dict) or not isinstance(data.get("kvsim"), str):
        raise DataError(f"{path}: no field kvsim; is this what kvsim explain --json prints?")
    return Document(path, data["kvsim"], data)
