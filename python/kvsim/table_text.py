"""A table as text, CSV, Markdown or LaTeX, for every command that has --table."""

from typing import TYPE_CHECKING

from .errors import UsageError
from .plain import csv_cell, printable

if TYPE_CHECKING:
    import pandas

FORMS = ("text", "csv", "md", "tex")
_ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
            **{sign: "\\" + sign for sign in "&%$#_{}"}}


def shown(value: object, digits: int = 3) -> str:
    """A cell for people: numbers with `digits` significant digits, – where there is none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "–" if value != value else f"{value:.{digits}g}"
    return printable(value)


def latex(text: str) -> str:
    """Text with LaTeX's own signs escaped."""
    return "".join(_ESCAPES.get(sign, sign) for sign in text).replace("–", "--")


def table_text(table: "pandas.DataFrame", form: str = "text") -> str:
    """The table in one of FORMS, ending in a new line. CSV has all digits and no marks."""
    if form not in FORMS:
        raise UsageError(f"--table: found {form}, expected one of {', '.join(FORMS)}")
    if form == "csv":
        return table.map(csv_cell).to_csv(index=False, float_format="%.6g", lineterminator="\n")
    from pandas.api.types import is_numeric_dtype

    head = [str(one) for one in table.columns]
    rows = [[shown(one) for one in row] for row in table.itertuples(index=False)]
    numeric = [is_numeric_dtype(table[one]) for one in table.columns]
    if form == "tex":
        lines = [r"\begin{tabular}{" + "".join("r" if one else "l" for one in numeric) + "}",
                 r"\toprule", *(" & ".join(map(latex, row)) + r" \\" for row in [head]), r"\midrule",
                 *(" & ".join(map(latex, row)) + r" \\" for row in rows), r"\bottomrule",
                 r"\end{tabular}"]
        return "\n".join(lines) + "\n"
    if form == "md":
        bar = ["--:" if one else "---" for one in numeric]
        cells = [[one.replace("|", r"\|") for one in row] for row in [head, bar, *rows]]
        return "".join(f"| {' | '.join(row)} |\n" for row in cells)
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    return "".join("  ".join(cell.rjust(width) if right else cell.ljust(width)
                             for cell, width, right in zip(row, widths, numeric)).rstrip() + "\n"
                   for row in [head, *rows])
