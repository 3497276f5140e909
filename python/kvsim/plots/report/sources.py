"""Sources of a page: results files, what the trace adds to them, what closed loops found."""

import io
from dataclasses import dataclass
from pathlib import Path

import xarray

from .. import load


@dataclass
class Source:
    """One results file with everything that belongs to it."""

    results: load.Results
    name: str = ""
    details: xarray.Dataset | None = None

    @property
    def loops(self):
        """Findings of the trace's closed loops."""
        return self.results.loops

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
    opened = [load.open_results(path) for path in paths]
    found = {id(one): open_details(more) for one, more in zip(opened, details) if more}
    sources = [Source(results, details=found.get(id(results)))
               for results in load.join_loops(opened)]
    for source, name in zip(sources, load.names([source.results for source in sources])):
        check(source.results)
        source.name = name
    return sources


def open_details(path):
    """From memory: what `kvsim report` hands over has no name any more, and HDF5 wants one."""
    try:
        held = io.BytesIO(Path(path).read_bytes())
    except OSError as error:
        raise load.data_error(f"{path}: {error.strerror}") from error
    return load.read_dataset(held, path)


def check(results):
    """Parts that the page cannot do without."""
    policies = results.policies
    if len(set(policies)) != len(policies):
        raise load.data_error(f"{results.path}: a policy is there twice")
    if "retained_importance" not in results.data.variables:
        raise load.data_error(f"{results.path}: no variable retained_importance; "
                              "is this a results file of kvsim replay?")


def loop_values(source, name):
    """[policy, budget(, step)] of a closed loop's variable in the order of the results; NaN where
    it was not run."""
    return source.results.of_loops(lambda data: data.get(name)).values
