"""What the commands of these studies share: their arguments, and how they write figures."""

import argparse
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from kvsim.plots import style
from . import runs


def parser(about: str, name: str, source: str, out: str, nargs: str | None = None):
    """Arguments `source` and --out of a command. `source` and `out` are what its help calls them."""
    made = argparse.ArgumentParser(prog=f"{name}.py", description=about,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("source", metavar=source, type=Path, nargs=nargs)
    made.add_argument("-o", "--out", required=True, type=Path, metavar=out)
    return made


def save(folder: Path, name: str, draw: Callable[[], Figure], endings=("png", "pdf")) -> None:
    """Draws a figure into FOLDER/NAME.png and .pdf."""
    folder.mkdir(parents=True, exist_ok=True)
    style.use()
    figure = draw()
    for ending in endings:
        style.save(figure, folder / f"{name}.{ending}")
        print(folder / f"{name}.{ending}")


def write_page(about: str, name: str, header, rows, draw) -> None:
    """The command `[DIR] -o STUDIES`: writes STUDIES/losses/NAME.csv of rows(DIR), and STUDIES/NAME.png, which
    draw(STUDIES) makes of that table; without DIR of the table as it stands. Several tables: `rows` by name, and
    where they differ `header`, too."""
    arguments = parser(about, name, "DIR", "STUDIES", "?")
    options = arguments.parse_args()
    if options.source is not None:
        for table, rows_of in (rows if isinstance(rows, dict) else {name: rows}).items():
            listed = list(rows_of(options.source))
            if not listed:
                arguments.error(f"{options.source}: found no closed loop of this study")
            own = header[table] if isinstance(header, dict) else header
            runs.write(options.out / f"losses/{table}.csv", [own, *listed])
    save(options.out, name, lambda: draw(options.out), ("png",))
