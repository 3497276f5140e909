"""`report`: results as one page to explore, written by the program as `kvsim report` writes it."""

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import xarray

from .errors import UsageError
from .program import exchange, options, run
from .results_file import Datasets, as_file, as_list, trace_of


def report(results: Datasets, out: str | PathLike, *,
           trace: str | PathLike | Iterable[str | PathLike] | None = None, title: str | None = None,
           pool: bool = False, overwrite: bool = False) -> Path:
    """Writes one HTML file that opens in any browser, without a network.

    Args:
        results: what `replay` and `sweep` return, or paths of results files; what closed loops
            found may be among them, and then leads the page.
        out: the page.
        trace: traces of the results; by default those that they name. Without one the page has no
            texts.
        title: of the page.
        pool: means over traces although their layers or lengths differ.
        overwrite: replace `out`.
    """
    given = as_list(results)
    if trace is None:
        traces = list(dict.fromkeys(str(one) for one in map(_trace, given) if one))
    else:
        traces = [str(trace)] if isinstance(trace, (str, PathLike)) else [str(one) for one in trace]
    with exchange() as folder:
        files = [as_file(one, folder, number) for number, one in enumerate(given)]
        run(["report", *files, "-o", out,
             *options(trace=traces or None, title=title, pool=pool, overwrite=overwrite)])
    return Path(out)


def _trace(one: xarray.Dataset | str | PathLike) -> Path | None:
    if not isinstance(one, xarray.Dataset):
        return None
    try:
        return trace_of(one, None)
    except UsageError:
        return None
