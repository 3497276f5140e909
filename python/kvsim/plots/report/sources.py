"""What a page is made from: results files, what the trace adds to them, what closed loops found."""

import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xarray

from .. import load

LOOP = "kl_divergence"


@dataclass
class Loop:
    """What data/closed_loop.py found: measures over (policy, budget[, step])."""

    path: Path
    data: xarray.Dataset


@dataclass
class Source:
    """One results file with everything that belongs to it."""

    results: load.Results
    name: str = ""
    details: xarray.Dataset | None = None
    loops: list = field(default_factory=list)

    @property
    def digest(self):
        return str(self.results.data.attrs.get("trace_digest", self.results.path))

    @property
    def prompt(self):
        """n, the number of prompt entries."""
        attributes = self.results.data.attrs
        try:
            return int(attributes["prompt_len"])
        except (KeyError, ValueError):
            raise load.data_error(f"{self.results.path}: no attribute prompt_len") from None

    def find(self, name):
        """A variable of the results, or of the details; None when neither has it."""
        for data in (self.results.data, self.details):
            if data is not None and name in data.variables:
                return data[name]
        return None


def open_sources(paths, details):
    """The sources of a page; `details` has a path, or None, per file."""
    sources, loops = [], []
    for path, more in zip(paths, details):
        if is_loop(path):
            loops.append(Loop(Path(path), open_plain(path)))
        else:
            results = load.open_results(path)
            check(results)
            sources.append(Source(results, details=open_details(more) if more else None))
    if not sources:
        raise load.data_error(f"{paths[0]}: no results file of kvsim replay is among the files")
    for source, name in zip(sources, load.names([source.results for source in sources])):
        source.name = name
    for loop in loops:
        attach(loop, sources)
    return sources


def open_details(path):
    """From memory: what `kvsim report` hands over has no name any more, and HDF5 wants one."""
    try:
        return open_plain(io.BytesIO(Path(path).read_bytes()))
    except OSError as error:
        raise load.data_error(f"{path}: {error.strerror}") from error


def open_plain(path):
    try:
        return xarray.open_dataset(path, engine="h5netcdf", decode_times=False)
    except Exception as error:  # h5py, h5netcdf and xarray each have their own kinds
        raise load.not_results(path, error) from error


def is_loop(path):
    if not Path(path).is_file():
        return False
    try:
        with xarray.open_dataset(path, engine="h5netcdf", decode_times=False) as data:
            return LOOP in data.variables and "layer" not in data.dims
    except Exception:  # opened again as a results file, which says what is wrong
        return False


def check(results):
    """What the page cannot do without."""
    policies = results.policies
    if len(set(policies)) != len(policies):
        raise load.data_error(f"{results.path}: a policy is there twice")
    if "retained_importance" not in results.data.variables:
        raise load.data_error(f"{results.path}: no variable retained_importance; "
                              "is this a results file of kvsim replay?")


def attach(loop, sources):
    """Gives a closed loop to the results of its trace that have one of its policies."""
    digest = str(loop.data.attrs.get("trace_digest", ""))
    for name in ("policy", "budget_label"):
        if name not in loop.data.variables:
            raise load.data_error(f"{loop.path}: no variable {name}")
    policies = {str(one) for one in loop.data["policy"].values}
    for source in sources:
        if source.digest == digest and policies & set(source.results.policies):
            source.loops.append(loop)
            return
    raise load.data_error(f"{loop.path}: none of the results files is of its trace "
                          f"{loop.data.attrs.get('trace', '')}")


def loop_values(source, name):
    """[policy, budget(, step)] of a closed loop's variable in the order of the results; NaN where
    it was not run. None when no closed loop of the source has it."""
    results = source.results
    labels, found = results.budget_labels(), None
    for loop in source.loops:
        if name not in loop.data.variables:
            continue
        array = loop.data[name]
        if array.dims[:2] != ("policy", "budget"):
            raise load.data_error(f"{loop.path}: {name} has dimensions ({', '.join(array.dims)})")
        with_steps = array.ndim == 3
        if found is None:
            shape = (len(results.policies), len(labels)) + (results.steps.size,) * with_steps
            found = np.full(shape, np.nan)
        values = array.values.astype(np.float64)
        if with_steps:
            steps = loop.data["step"].values
            known = np.isin(steps, results.steps)
            values, place = values[..., known], np.searchsorted(results.steps, steps[known])
        for p, policy in enumerate(map(str, loop.data["policy"].values)):
            for b, label in enumerate(map(str, loop.data["budget_label"].values)):
                if policy in results.policies and label in labels:
                    at = results.policies.index(policy), labels.index(label)
                    if with_steps:
                        found[at][place] = values[p, b]
                    else:
                        found[at] = values[p, b]
    return found
