"""Results as xarray: files that are read and written, and what stands in them."""

import io
import os
import tempfile
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray

from .errors import DataError, UsageError
from .hdf5_file import unreadable
from .plots import load
from .program import call
from .whole import write_bytes

#: What `plot`, `report` and `compare` take.
Datasets = xarray.Dataset | str | PathLike | Iterable[xarray.Dataset | str | PathLike]
#: Attribute with the path of the trace: absolute in memory, relative to its folder in a file.
TRACE_PATH = "trace_path"


def trace_of(dataset: xarray.Dataset, given: str | PathLike | None) -> Path:
    """The trace that results were made from: the one given, or the one that they name."""
    if given is not None:
        return Path(given)
    path = Path(str(dataset.attrs.get(TRACE_PATH, "")))
    if not path.is_file():
        raise UsageError(f"which trace? These results are of {dataset.attrs.get('trace')}: give trace=...")
    return path


def open_results(path: str | PathLike) -> xarray.Dataset:
    """Reads a results file of `kvsim replay`, `sweep` or `closed-loop` into memory.

    All variables: docs/results.md. Units such as "s" stay numbers."""
    try:
        data = load.open_results(path).data.load()
    except (OSError, RuntimeError) as error:
        raise unreadable(path, f"a {load.RESULTS_FILE}", error) from error
    if TRACE_PATH in data.attrs:
        folder = Path(path).resolve().parent
        data.attrs[TRACE_PATH] = os.path.normpath(folder / str(data.attrs[TRACE_PATH]))
    return data


def write_results(dataset: xarray.Dataset, path: str | PathLike) -> None:
    """Writes results, or a part of them, as a file that every command reads."""
    check(dataset)
    plain = dataset.copy()
    if TRACE_PATH in plain.attrs:
        plain.attrs = {**plain.attrs, TRACE_PATH: os.path.relpath(
            str(plain.attrs[TRACE_PATH]), Path(path).resolve().parent)}
    for name, variable in plain.variables.items():
        # Stored types and marks of undefined cells as they were; the rest follows from the data.
        plain[name].encoding = {key: value for key, value in variable.encoding.items()
                                if key in ("dtype", "_FillValue") and variable.dtype.kind != "O"}
    written = io.BytesIO()
    plain.to_netcdf(written, engine="h5netcdf")
    with h5py.File(written, "r+") as file:
        # xarray makes every number among the attributes an array of one.
        for name, value in list(file.attrs.items()):
            if isinstance(value, np.ndarray) and value.shape == (1,) and value.dtype.kind in "iuf":
                file.attrs[name] = value[0]
    write_bytes(path, written.getbuffer())


def is_results(dataset: xarray.Dataset) -> bool:
    """Did kvsim make this?"""
    replayed = "kvsim_version" in dataset.attrs and "retained_importance_mean" in dataset.variables
    return replayed or load.is_loop(dataset)


def check(dataset: xarray.Dataset) -> None:
    if not is_results(dataset):
        raise DataError("not results of kvsim: neither retained_importance_mean of replay nor "
                        "kl_divergence_mean of closed_loop is there")


def records(dataset: xarray.Dataset) -> dict[str, dict[str, Any]]:
    """Of every policy all keys with their values, and the function in Python, if it is one."""
    found = {one["record"]: one["parameters"] | {key: one[key] for key in ("function",) if key in one}
             for one in load.entries(dataset)}
    if not found:
        raise DataError("the results have no attribute config that says what was run")
    return found


def as_file(given: xarray.Dataset | str | PathLike, folder: str, number: int = 0) -> Path:
    """A dataset as a file of `folder`, named after its trace; a path stays what it is."""
    if not isinstance(given, xarray.Dataset):
        return Path(given)
    name = Path(str(given.attrs.get("trace", "results"))).stem
    path = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=folder)) / f"{name}.nc"
    what = "losses" if load.is_loop(given) else "results"
    call(path, f"the {what} of {given.attrs.get('trace', 'an unnamed trace')}")
    write_results(given, path)
    return path
