"""Sources of a page: results files, what the trace adds to them, what closed loops found."""

import io
from dataclasses import dataclass
from pathlib import Path

import xarray

from ...errors import DataError
from .. import load


@dataclass
class Source:
    """One results file with everything that belongs to it."""

    results: load.Results
    name: str
    details: xarray.Dataset | None

    @property
    def prompt(self):
        """n, the number of prompt entries."""
        try:
            return int(self.results.data.attrs["prompt_len"])
        except (KeyError, ValueError):
            raise DataError(f"{self.results.path}: no attribute prompt_len") from None

    def find(self, name):
        """A variable of the results, or of the details; None when neither has it."""
        for data in (self.results.data, self.details):
            if data is not None and name in data.variables:
                return data[name]
        return None


def open_sources(paths, details):
    """The sources of a page; `details` has a path, or None, per file."""
    opened = [load.open_results(path) for path in paths]
    found = {id(one): open_details(more) for one, more in zip(opened, details) if more}
    several = load.join_loops(opened)
    for results in several:   # parts that the page cannot do without
        if len(set(results.policies)) != len(results.policies):
            raise DataError(f"{results.path}: a policy is there twice")
        if not results.has("retained_importance"):
            raise DataError(f"{results.path}: no variable retained_importance; "
                            "is this a results file of kvsim replay?")
    return [Source(results, name, found.get(id(results)))
            for results, name in zip(several, load.names(several))]


def open_details(path):
    """From memory: what `kvsim report` hands over has no name any more, and HDF5 wants one."""
    try:
        held = io.BytesIO(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    return load.read_dataset(held, path)
