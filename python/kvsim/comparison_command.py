"""`kvsim compare A B RESULTS...`."""

import sys
from pathlib import Path

from .table_text import FORMS, table_text
from .tool import Parser, run_tool

#: Columns that people read; the others are in the CSV.
COLUMNS = {"measure": "measure", "budget": "budget", "a": "A", "b": "B", "by": "by", "value": "A to B",
           "low": "low", "high": "high", "held": "A holds", "differs": "differs"}


def parser() -> Parser:
    p = Parser(prog="kvsim compare", description="How two policies differ, paired, with intervals.")
    p.add_argument("a", metavar="A", help="a policy, as the files name it")
    p.add_argument("b", metavar="B", help="the policy that it is compared with")
    p.add_argument("results", nargs="+", type=Path, metavar="RESULTS.nc",
                   help="files of replay, sweep or closed-loop, of one trace or several")
    p.add_argument("--metric", metavar="LIST", help="measures, by comma: variables of the files "
                   "(kl_divergence and stream_error, where all files have them)")
    p.add_argument("--budget", metavar="LIST", help="budgets, by comma, as they were typed (all)")
    p.add_argument("--table", choices=FORMS, default="text", help="form of the table (text)")
    return p


def marks(frame) -> dict[tuple[int, str], str]:
    """The better of A and B; where they do not differ, the other is not told apart. Where they do not
    hold alike none is better, and A holds more or less."""
    from .ranking import alike, better

    found = {}
    for place, row in enumerate(frame.itertuples()):
        good = better(row.measure)
        if not alike(row.held):
            found[place, "A"] = "more" if row.held > 1 else "less"
            continue
        if good == "none" or not (row.a < row.b or row.a > row.b):
            continue
        first = (row.a < row.b) == (good == "low")
        found[place, "A" if first else "B"] = "best"
        if not row.differs:
            found[place, "B" if first else "A"] = "equal"
    return found


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)

    def work() -> None:
        from .comparison import compare

        frame = compare(options.a, options.b, options.results,
                        metrics=options.metric.split(",") if options.metric else None,
                        budgets=options.budget.split(",") if options.budget else None)
        if options.table == "csv":
            sys.stdout.write(table_text(frame, "csv"))
            return
        sys.stdout.write(table_text(
            frame[list(COLUMNS)].rename(columns=COLUMNS), options.table,
            title=f"Paired differences of A, {options.a}, and B, {options.b}, with 95 % intervals",
            of=options.results, provenance={"kept": list(dict.fromkeys(frame.budget))},
            marks=marks(frame), notes=frame.attrs["sentences"]))

    return run_tool("kvsim compare", work)
