"""`plot` and `report`: figures of results, and a page to explore, as `kvsim plot` and `kvsim report` make them."""

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import xarray

from .errors import UsageError
from .plain import several
from .program import exchange, options, run
from .results_file import Datasets, as_file, trace_of


class Figures(list[Path]):
    """Paths of the files that were drawn; a notebook shows the PNGs."""

    def _ipython_display_(self) -> None:
        from IPython.display import Image, display

        for one in self:
            if one.suffix == ".png":
                display(Image(data=one.read_bytes(), format="png", alt=one.stem))


def plot(results: Datasets, out: str | PathLike | None = None, *,
         only: str | Iterable[str] | None = None, formats: str | Iterable[str] | None = None, budget: str | float | None = None,
         layers: str | None = None, policy: str | Iterable[str] | None = None, pool: bool = False,
         width: str | None = None, overwrite: bool = False) -> Figures:
    """Draws figures of one dataset or several, all that they are enough for.

    Args:
        results: what `replay` and `sweep` return, or paths of results files. A part of a dataset
            (``results.sel(policy=[...])``) is drawn as it is.
        out: folder of the figures; without it they live as long as what is returned, as PNG.
        only: names of figures; ``kvsim.figure_names()`` lists them.
        formats: png, pdf, csv.
        budget: of the figures that show one; a number with a point is a ratio.
        layers: such as "0,5,10-15".
        policy: records, as the dataset names them.
        width: "column" or "page" of a paper with two columns; None: 7.2 inches.

    Returns:
        The paths of all files; in a notebook the figures themselves."""
    figures = Figures()
    if out is None:
        out, formats = tempfile.mkdtemp(prefix="kvsim-figures-"), formats or "png"
        weakref.finalize(figures, shutil.rmtree, out, ignore_errors=True)
    with exchange() as folder:
        files = [as_file(one, folder, number) for number, one in enumerate(several(results))]
        printed = run(["plot", *files, "-o", out, *options(
            only=",".join(several(only)) or None, formats=",".join(several(formats)) or None,
            budget=budget, layers=layers, policy=several(policy), pool=pool, width=width, overwrite=overwrite)])
    figures += [Path(line) for line in printed.splitlines()]
    return figures


def figure_names() -> list[str]:
    """Names that `only=` of :func:`plot` takes."""
    from .plots.draw import figure_titles

    return list(figure_titles())


def report(results: Datasets, out: str | PathLike, *,
           trace: str | PathLike | Iterable[str | PathLike] | None = None, title: str | None = None,
           pool: bool = False, overwrite: bool = False) -> Path:
    """Writes one HTML file that opens in any browser, without a network.

    Args:
        results: what `replay` and `sweep` return, or paths of results files; what closed loops
            found may be among them, and then leads the page.
        out: the page.
        trace: traces of the results; by default those that they name. Without one the page has no
            texts."""
    given = several(results)
    traces = list(map(str, several(trace)))
    for one in given if trace is None else ():
        if isinstance(one, xarray.Dataset):
            with contextlib.suppress(UsageError):
                traces.append(str(trace_of(one, None)))
    with exchange() as folder:
        files = [as_file(one, folder, number) for number, one in enumerate(given)]
        run(["report", *files, "-o", out,
             *options(trace=list(dict.fromkeys(traces)), title=title, pool=pool, overwrite=overwrite)])
    return Path(out)
