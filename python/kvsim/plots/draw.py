"""`kvsim plot`: draws the figures of results files.

Also of the JSON that `kvsim explain --json` prints (FILE.json). A file of kvsim closed-loop adds what
the model itself lost to the figures of its trace that show it.

One results file puts its figures into the folder; several put them into a folder each, named after
the file, and what is drawn from all of them together into the folder itself. Prints the path of
every file written, one per line; what could not be drawn, and why, goes to standard error. Exit
codes are those of kvsim: 0 done, 1 failed, 2 usage, 3 bad data."""

import dataclasses
import functools
import importlib
import pkgutil
import re
import sys
from pathlib import Path

from ..budgets import parse_budget
from ..errors import DataError, UsageError
from ..plain import printable, told_apart
from ..tool import Parser, names, number_list, put_line, run_tool
from ..whole import check_target



def parse(arguments, titles):
    from . import measures
    listing = "\n".join(f"  {name:23}{title}".rstrip() for name, title in titles.items())
    parser = Parser(prog="kvsim plot", description=(
                        "Draws the figures of results files: PDF and PNG per figure, a folder per file when there\n"
                        "are several. Also what `kvsim explain --json` prints (FILE.json)."),
                    epilog=f"figures:\n{listing}")
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS.nc", type=Path)
    add("-o", "--out", required=True, metavar="DIR", type=Path, help="folder of the figures, made when absent")
    add("--only", metavar="LIST", type=names(titles, "figure"),
        help="figures to draw, by comma (all that the file is enough for)")
    add("--formats", metavar="LIST", default=["pdf", "png"], type=names(("pdf", "png", "csv"), "format"),
        help="pdf, png, and csv for the numbers of figures that are tables (pdf,png)")
    add("--width", choices=("column", "page"), default="screen",
        help="for a paper of two columns: 3.25 or 6.75 inches, as ICML has them, with "
             "texts of the same size (7.2 inches)")
    add("--metric", metavar="LIST", type=names(measures.NAMES, "metric"),
        help="measures, by comma, of the figures of sweeps, traces and worst_case: "
             f"{', '.join(measures.NAMES)} (the first two)")
    add("--budget", metavar="B",
        help="budget of the figures that show one: a ratio, or a count of tokens; "
             "the nearest in the file is taken (0.5)")
    add("--layers", metavar="LIST", type=number_list, help="layers to draw, e.g. 0,5,10-15 (all)")
    add("--policy", action="append", metavar="RECORD", help="policy to draw, as the file names it; repeatable (all)")
    add("--pool", action="store_true", help="draw means over files although their layers or lengths differ")
    add("--overwrite", action="store_true", help="replace existing figures")
    parser.add_general_options()
    return parser.parse_args(arguments)


def figure_titles():
    """Every module of the folder figures/ with its TITLE as it is written, by name: a new figure is a new
    file, and to list them needs no package that draws them."""
    from . import figures
    files = {module.name: Path(module.module_finder.path) / f"{module.name}.py"
             for module in pkgutil.iter_modules(figures.__path__)}
    return {name: title[1] for name, file in files.items()
            if (title := re.search(r'^TITLE = "(.*)"$', file.read_text(encoding="utf-8"), re.MULTILINE))}


def load_figures(titles):
    from . import figures
    return {name: importlib.import_module(f"{figures.__name__}.{name}") for name in titles}


def plan(options, figures, load):
    """All (name, path, function that draws) of the run. Nothing is drawn before all is known to fit."""
    reads = {name: getattr(module, "READS", "results") for name, module in figures.items()}
    # Results files, with what closed loops found beside them, and the JSON of commands.
    inputs = [load.open_document(path) if path.suffix == ".json" else
              load.open_results(path, options.layers, options.policy) for path in options.results]
    inputs = load.join_loops([one if isinstance(one, load.Document) else
                              dataclasses.replace(one, data=load.shown(one.data)) for one in inputs])
    opened = [one for one in inputs if isinstance(one, load.Results)]
    folders = [options.out / name for name in told_apart(one.path.stem for one in inputs)] \
        if len(inputs) > 1 else [options.out]   # two files of one name get numbers
    planned = []
    for given, folder in zip(inputs, folders):
        kind = getattr(given, "kind", "results")
        if isinstance(given, load.Results) and options.budget is not None:
            nearest = given.nearest_budget(options.budget)
            if nearest != given.ratio_of(options.budget):
                print(printable(f"kvsim plot: {given.path}: no budget {options.budget}; figures that show one "
                                f"take the nearest, {given.budget_text(nearest)}"), file=sys.stderr)
        planned += [(name, folder, given, kind) for name in options.only or figures
                    if reads[name] != "several" and (options.only or reads[name] == kind)]
    # A figure that compares files is drawn from a single one only when asked for by name.
    planned += [(name, options.out, opened, "several") for name in options.only or figures
                if reads[name] == "several" and (
                    options.only or len(opened) >= (1 if getattr(figures[name], "ALONE", False) else 2))]
    pages = []
    for name, folder, given, kind in planned:
        try:
            if reads[name] != kind or not given:
                raise load.Missing(f"{getattr(given, 'path', 'this')} is not what {name} is drawn from")
            if getattr(figures[name], "POOLS", False) and not options.pool:
                load.check_poolable(given)
            pages += [(name, folder / page, draw)
                      for page, draw in pages_of(name, figures[name], given, options, load).items()]
        except load.Missing as missing:
            if options.only:
                raise DataError(f"cannot draw {name}: {missing}") from None
            if not isinstance(missing, load.NotMeasured):
                print(printable(f"kvsim plot: {name} left out: {missing}"), file=sys.stderr)
    if not pages:
        raise DataError(f"{options.results[0]}: nothing to draw; --help lists what the figures show")
    return pages


def pages_of(name, module, given, options, load):
    """{file name: function that draws it} of one figure (figures/__init__.py)."""
    lacking = next((f"no variable {one}" for one in getattr(module, "NEEDS", ()) if not given.has(one)), "")
    found = []
    if not lacking and hasattr(module, "find"):
        found = [module.find(given, options)]
        lacking = "" if found[0] else "nothing of it"
    if lacking:
        raise load.NotMeasured(f"{given.path}: {getattr(module, 'LACKING', lacking)}")
    if hasattr(module, "pages"):
        return module.pages(given, options, *found)
    return {name: functools.partial(module.draw, given, options, *found)}


def run(options, titles):
    from . import axes, load, style
    figures = load_figures(titles)
    if options.budget is not None:
        parse_budget(options.budget)
    planned = plan(options, figures, load)
    for target in [Path(f"{stem}.{ending}") for _, stem, _ in planned for ending in options.formats]:
        folder = next(one for one in target.parents if one.exists())
        if not folder.is_dir():
            raise UsageError(f"{folder}: a file stands where a folder of figures should be")
        if target.exists():
            check_target(target, options.overwrite, [])
    style.use(options.width)
    written, alike = False, {}   # figures that show the same measures, of all files
    for one in planned:
        alike.setdefault(getattr(figures[one[0]], "MEASURE", one[0]), []).append(one)
    for group in alike.values():
        drawn = [(name, stem, draw()) for name, stem, draw in group]
        axes.one_scale([(name, figure) for name, _, figure in drawn])
        for _, stem, figure in drawn:
            stem.parent.mkdir(parents=True, exist_ok=True)
            for ending in options.formats:
                if style.save(figure, Path(f"{stem}.{ending}")):
                    written = True
                    put_line(f"{stem}.{ending}")
            style.plt.close(figure)
    if not written:
        raise UsageError("--formats: found csv, but no figure drawn is a table; expected pdf or "
                         "png (the summary's numbers: kvsim replay --csv FILE)")


def main(arguments=None):
    titles = figure_titles()
    options = parse(arguments, titles)
    return run_tool("kvsim plot", lambda: run(options, titles))
