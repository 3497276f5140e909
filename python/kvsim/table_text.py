"""A table as text, CSV, Markdown or LaTeX, for every command that has --table: the program writes it
(`kvsim table -`, docs/cli.md 2.3)."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from .plain import csv_text, printable
from .program import answer
from .tool import TABLES

if TYPE_CHECKING:
    import pandas

FORMS = (*TABLES, "csv")


def shown(value: object, digits: int = 3) -> str:
    """A cell for people: numbers with `digits` significant digits, – where there is none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "–" if value != value else f"{value:.{digits}g}"
    return printable(value)


def table_text(table: "pandas.DataFrame", form: str = "text", *, title: str = "",
               of: Iterable[str | PathLike] = (), provenance: Mapping[str, Any] | None = None,
               marks: Mapping[tuple[int, str], str] | None = None,
               notes: Sequence[str] = ()) -> str:
    """The table in one of FORMS, ending in a new line. CSV has all digits and nothing else.

    The caption says where the numbers come from: results files `of`, or `provenance` itself. `marks`:
    of a row and a column, "best", "equal", "more" or "less"."""
    if form == "csv":
        return csv_text(table)
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    names = [str(one) for one in table.columns]
    columns = [{"name": name, "left": not (is_numeric_dtype(table[one])
                                           or is_bool_dtype(table[one])
                                           or name in table.attrs.get("numbers", ()))}
               for name, one in zip(names, table.columns)]
    rows = [[{"text": shown(cell), "mark": (marks or {}).get((place, name), "")}
             for name, cell in zip(names, row)]
            for place, row in enumerate(table.itertuples(index=False))]
    document = {"title": title, "columns": columns, "rows": rows, "notes": list(notes),
                "of": [str(one) for one in of], "from": dict(provenance or {})}
    return answer(["table", "-", f"--table={form}"], document)
