"""Results as xarray: reading, the summary table, and what a dataset can do: `dataset.kvsim`."""

import functools
import json
import os
import tempfile
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas
import xarray

from .errors import DataError, UsageError
from .program import call

if TYPE_CHECKING:
    from .explanation import Explanation
    from .figures import Figures

#: Attribute with the path of the trace: absolute in memory, relative to its folder in a file.
TRACE_PATH = "trace_path"


def trace_of(dataset: xarray.Dataset, given: str | PathLike | None) -> Path:
    """The trace that results were made from: the one given, or the one that they name."""
    if given is not None:
        return Path(given)
    path = Path(str(dataset.attrs.get(TRACE_PATH, "")))
    if not path.is_file():
        raise UsageError(f"which trace? These results are of {dataset.attrs.get('trace')}: give "
                         "trace=...")
    return path


def open_results(path: str | PathLike) -> xarray.Dataset:
    """Reads a results file of `kvsim replay`, `sweep` or `closed-loop` into memory.

    All variables: docs/results.md. Units such as "s" stay numbers.
    """
    from .plots import load

    data = load.open_results(path).data.load()
    if TRACE_PATH in data.attrs:
        folder = Path(path).resolve().parent
        data.attrs[TRACE_PATH] = os.path.normpath(folder / str(data.attrs[TRACE_PATH]))
    return data


def write_results(dataset: xarray.Dataset, path: str | PathLike) -> None:
    """Writes results, or a part of them, as a file that every command reads."""
    _check(dataset)
    plain = dataset.copy()
    if TRACE_PATH in plain.attrs:
        plain.attrs = {**plain.attrs, TRACE_PATH: os.path.relpath(
            str(plain.attrs[TRACE_PATH]), Path(path).resolve().parent)}
    for name, variable in plain.variables.items():
        # Stored types and marks of undefined cells as they were; the rest follows from the data.
        plain[name].encoding = {key: value for key, value in variable.encoding.items()
                                if key in ("dtype", "_FillValue") and variable.dtype.kind != "O"}
    plain.to_netcdf(path, engine="h5netcdf")
    with h5py.File(path, "r+") as file:
        # xarray makes every number among the attributes an array of one.
        for name, value in list(file.attrs.items()):
            if isinstance(value, np.ndarray) and value.shape == (1,) and value.dtype.kind in "iuf":
                file.attrs[name] = value[0]


def renamed(dataset: xarray.Dataset, names: dict[str, str]) -> xarray.Dataset:
    """Other names for policies, in the coordinate and in the record of the run."""
    config = json.loads(dataset.attrs["config"])
    for one in config["policies"]:
        one["record"] = names.get(one["record"], one["record"])
    policies = [names.get(str(one), str(one)) for one in dataset["policy"].values]
    attributes = dataset["policy"].attrs
    dataset = dataset.assign_coords(policy=np.array(policies, dtype=object))
    dataset["policy"].attrs = attributes
    return dataset.assign_attrs(config=json.dumps(config))


def is_replay(dataset: xarray.Dataset) -> bool:
    """Did `kvsim replay` make this?"""
    return "kvsim_version" in dataset.attrs and "retained_importance_mean" in dataset.variables


def is_loop(dataset: xarray.Dataset) -> bool:
    """Did `kvsim closed-loop` make this?"""
    return "kl_divergence_mean" in dataset.variables and "layer" not in dataset.dims


def is_results(dataset: xarray.Dataset) -> bool:
    """Did kvsim make this?"""
    return is_replay(dataset) or is_loop(dataset)


def _check(dataset: xarray.Dataset) -> None:
    if not is_results(dataset):
        raise DataError("not results of kvsim: neither retained_importance_mean of replay nor "
                        "kl_divergence_mean of closed_loop is there")


# Column of the summary: variable, and how it is folded over what is not policy and budget; as in
# the table that `kvsim replay` prints. The last ones are those of closed loops, in nats and shares.
COLUMNS = {
    ("stream", "error"): ("stream_error_rms", "max"),
    ("retained importance", "mean"): ("retained_importance_mean", "mean"),
    ("retained importance", "worst"): ("retained_importance_min", "min"),
    ("retained importance", "outliers"): ("outlier_count", "sum"),
    ("output error", "mean"): ("output_error_mean", "mean"),
    ("output error", "worst"): ("output_error_max", "max"),
    ("residual error", "worst"): ("residual_error_max", "max"),
    ("", "smaller"): ("compression", "max"),
    ("KL divergence", "mean"): ("kl_divergence_mean", "mean"),
    ("KL divergence", "answer"): ("kl_divergence_answer", "mean"),
    ("KL divergence", "worst"): ("kl_divergence_max", "max"),
    ("log-likelihood", "lost"): ("nll_difference_mean", "mean"),
    ("same token", "share"): ("top1_agreement_mean", "mean"),
    ("same token", "written"): ("generated_agreement", "mean"),
}


def summary(dataset: xarray.Dataset) -> pandas.DataFrame:
    """One row per policy and budget: what `kvsim replay` prints, or what the model lost."""
    _check(dataset)
    labels = ("budget_label" if "budget_label" in dataset else "budget")
    budgets = [str(one) for one in np.atleast_1d(dataset[labels].values)]
    policies = [str(one) for one in np.atleast_1d(dataset["policy"].values)]
    rows = pandas.MultiIndex.from_product([policies, budgets], names=["policy", "budget"])
    table = {}
    for column, (name, fold) in COLUMNS.items():
        if name not in dataset:
            continue
        values = dataset[name].expand_dims(
            [one for one in ("policy", "budget") if one not in dataset[name].dims])
        values = values.transpose("policy", "budget", ...)
        over = [one for one in values.dims if one not in ("policy", "budget")]
        table[column] = getattr(values, fold)(over).values.reshape(-1) if over else (
            values.values.reshape(-1))
    frame = pandas.DataFrame(table, index=rows)
    frame.columns = pandas.MultiIndex.from_tuples(list(table))
    return frame


def summary_html(dataset: xarray.Dataset) -> str:
    """The summary table, with xarray's own view of the dataset to unfold."""
    import html

    formats = {column: ("{:.0f}" if column[1] == "outliers" else "{:.1f}x"
                        if column[1] == "smaller" else "{:.3f}") for column in COLUMNS}
    frame = summary(dataset)
    shown = frame.apply(lambda values: values.map(
        lambda one: "-" if np.isnan(one) else formats[values.name].format(one)))
    head = html.escape(f"{dataset.attrs.get('trace', '')}: {dataset.attrs.get('model', '')}")
    return (f"<div><b>{head}</b>{shown.to_html()}"
            f"<details><summary>all variables</summary>{dataset._repr_html_()}</details></div>")


def show_in_notebooks() -> None:
    """In IPython a dataset of results shows itself by its summary; others as they always did."""
    try:
        shell = get_ipython()  # type: ignore[name-defined]
    except NameError:
        return
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type(
        xarray.Dataset,
        lambda one: summary_html(one) if is_results(one) else one._repr_html_(),
    )


@xarray.register_dataset_accessor("kvsim")
class Results:
    """What can be done with a dataset of results: ``dataset.kvsim.summary`` and so on."""

    def __init__(self, dataset: xarray.Dataset):
        self._dataset = dataset

    @property
    def summary(self) -> pandas.DataFrame:
        """One row per policy and budget: what `kvsim replay` prints, or what the model lost."""
        return summary(self._dataset)

    @functools.cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """Of every policy all keys with their values, and the function in Python, if it is one."""
        try:
            listed = json.loads(self._dataset.attrs["config"])["policies"]
            return {one["record"]: {**one["parameters"], **(
                {"function": one["function"]} if "function" in one else {})} for one in listed}
        except (KeyError, TypeError, ValueError):
            raise DataError("the results have no attribute config that says what was run") from None

    def plot(self, only: str | Iterable[str] | None = None, **options: Any) -> "Figures":
        """Draws the figures: see :func:`kvsim.plot`."""
        from .figures import plot

        return plot(self._dataset, only=only, **options)

    def report(self, out: str | PathLike, **options: Any) -> Path:
        """Writes one page to explore: see :func:`kvsim.report`."""
        from .page import report

        return report(self._dataset, out, **options)

    def explain(self, **options: Any) -> "Explanation":
        """The tokens that were missed most: see :func:`kvsim.explain`."""
        from .explanation import explain

        return explain(self._dataset, **options)

    def save(self, path: str | PathLike) -> None:
        """Writes a results file that every command reads."""
        write_results(self._dataset, path)

    def _repr_html_(self) -> str:
        return summary_html(self._dataset)


def as_file(given: xarray.Dataset | str | PathLike, folder: str, number: int = 0) -> Path:
    """A dataset as a file of `folder`, named after its trace; a path stays what it is."""
    if not isinstance(given, xarray.Dataset):
        return Path(given)
    name = Path(str(given.attrs.get("trace", "results"))).stem
    path = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=folder)) / f"{name}.nc"
    what = "losses" if is_loop(given) else "results"
    call(path, f"the {what} of {given.attrs.get('trace', 'an unnamed trace')}")
    write_results(given, path)
    return path
