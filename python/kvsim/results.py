"""Methods of a dataset of results, `dataset.kvsim`, and its summary table."""

import functools
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import xarray

from .explanation import Explanation, explain
from .figures import Figures, plot, report
from .results_file import check, is_results, open_results, records, write_results
from .whole import write_text

__all__ = ["Results", "is_results", "open_results", "show_in_notebooks", "summary"]

# Column of the summary: variable, and how it is folded over what is not policy and budget; as in
# the table that `kvsim replay` prints. The last ones are those of closed loops, in nats and shares.
COLUMNS = {
    ("stream", "error"): ("stream_error_rms", "max"),
    ("retained importance", "mean"): ("retained_importance_mean", "mean"),
    ("retained importance", "worst"): ("retained_importance_min", "min"),
    ("retained importance", "outliers"): ("outlier_count", "sum"),
    ("output error", "mean"): ("output_error_mean", "mean"), ("output error", "worst"): ("output_error_max", "max"),
    ("residual error", "worst"): ("residual_error_max", "max"), ("", "smaller"): ("compression", "max"),
    ("KL divergence", "mean"): ("kl_divergence_mean", "mean"),
    ("KL divergence", "answer"): ("kl_divergence_answer", "mean"),
    ("KL divergence", "worst"): ("kl_divergence_max", "max"),
    ("log-likelihood", "lost"): ("nll_difference_mean", "mean"),
    ("same token", "share"): ("top1_agreement_mean", "mean"),
    ("same token", "written"): ("generated_agreement", "mean"),
}

#: How a column is written where people read it, by its last name.
FORMATS = {"outliers": "{:.0f}", "smaller": "{:.1f}x"}


class Summary(pandas.DataFrame):
    """The table of results; like every other, but for `to_latex`, which the program writes."""

    @property
    def _constructor(self):
        return Summary

    def to_latex(self, buf: str | PathLike | None = None, *, caption: str | None = None,
                 label: str | None = None, digits: int = 3) -> str | None:
        """The table for a paper that loads the package booktabs.

        Args:
            buf: a file to write; without it the text is returned.
            caption, label: with either of them the table floats.
            digits: after the point."""
        from .table_text import table_text

        table = shown(self, digits).reset_index()
        table.columns = [" ".join(filter(None, one)) if isinstance(one, tuple) else one for one in table.columns]
        table.attrs["numbers"] = list(table.columns[self.index.nlevels:])
        text = table_text(table, "tex", title=caption or "")
        if label:
            text = text.replace("\\setlength", f"\\label{{{label}}}\n\\setlength", 1)
        elif not caption:   # the tabular alone
            text = text[text.index("\\begin{tabular}"):text.index("\\end{table")]
        if buf is None:
            return text
        write_text(buf, text)
        return None


def shown(frame: pandas.DataFrame, digits: int = 3) -> pandas.DataFrame:
    """Its cells as people read them."""
    def form(column: object) -> str:
        return FORMATS.get(column[-1] if isinstance(column, tuple) else column, f"{{:.{digits}f}}")

    return frame.apply(lambda values: values.map(lambda one: "–" if np.isnan(one) else form(values.name).format(one)))


def summary(dataset: xarray.Dataset) -> Summary:
    """One row per policy and budget: what `kvsim replay` prints, or what the model lost."""
    check(dataset)
    labels = ("budget_label" if "budget_label" in dataset else "budget")
    budgets = [str(one) for one in np.atleast_1d(dataset[labels].values)]
    policies = [str(one) for one in np.atleast_1d(dataset["policy"].values)]
    rows = pandas.MultiIndex.from_product([policies, budgets], names=["policy", "budget"])
    table = {}
    for column, (name, fold) in COLUMNS.items():
        if name not in dataset:
            continue
        values = dataset[name].expand_dims([one for one in ("policy", "budget") if one not in dataset[name].dims])
        values = values.transpose("policy", "budget", ...)
        over = [one for one in values.dims if one not in ("policy", "budget")]
        table[column] = getattr(values, fold)(over).values.reshape(-1) if over else (values.values.reshape(-1))
    frame = Summary(table, index=rows)
    frame.columns = pandas.MultiIndex.from_tuples(list(table))
    return frame


def summary_html(dataset: xarray.Dataset) -> str:
    """The summary table, with xarray's own view of the dataset to unfold."""
    import html

    head = html.escape(f"{dataset.attrs.get('trace', '')}: {dataset.attrs.get('model', '')}")
    return (f"<div><b>{head}</b>{shown(summary(dataset)).to_html()}"
            f"<details><summary>all variables</summary>{dataset._repr_html_()}</details></div>")


def show_in_notebooks() -> None:
    """In IPython a dataset of results shows itself by its summary; others as they always did."""
    try:
        shell = get_ipython()  # type: ignore[name-defined]
    except NameError:
        return
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type(xarray.Dataset, lambda one: summary_html(one) if is_results(one) else one._repr_html_())


@xarray.register_dataset_accessor("kvsim")
class Results:
    """Methods of a dataset of results: ``dataset.kvsim.summary`` and so on."""

    def __init__(self, dataset: xarray.Dataset):
        self._dataset = dataset

    @property
    def summary(self) -> Summary:
        """One row per policy and budget: what `kvsim replay` prints, or what the model lost. A
        `pandas.DataFrame`; its `to_latex()` is a table for a paper."""
        return summary(self._dataset)

    @functools.cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """Of every policy all keys with their values, and the function in Python, if it is one."""
        return records(self._dataset)

    def plot(self, only: str | Iterable[str] | None = None, **options: Any) -> Figures:
        """Draws the figures: see :func:`kvsim.plot`."""
        return plot(self._dataset, only=only, **options)

    def report(self, out: str | PathLike, **options: Any) -> Path:
        """Writes one page to explore: see :func:`kvsim.report`."""
        return report(self._dataset, out, **options)

    def explain(self, **options: Any) -> Explanation:
        """The tokens that were missed most: see :func:`kvsim.explain`."""
        return explain(self._dataset, **options)

    def save(self, path: str | PathLike) -> None:
        """Writes a results file that every command reads."""
        write_results(self._dataset, path)

    def _repr_html_(self) -> str:
        return summary_html(self._dataset)
