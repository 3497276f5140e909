"""`kvsim report`: writes the page of results files.

Closed loops (kvsim closed-loop) may be among the files. What the traces add to them `kvsim details`
finds. Exit codes are those of kvsim: 0 done, 1 failed, 2 usage, 3 bad data."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from ...errors import DataError, UsageError
from ...program import options as as_options
from ...program import pass_through
from ...program import run as run_program
from ...tool import Parser, put_line, run_tool
from ...whole import check_target, write_text


def parse(arguments):
    parser = Parser(prog="kvsim report", description="""\
Writes one HTML file that opens in any browser, without a network: policies by budget, the prompt
coloured by what was kept, steps, layers and heads, spans, and the record. From the trace that the
results name come texts, what the worst steps looked for, and kept sets where the results lack them
(the record is replayed for them).""")
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS.nc", type=Path, help="results files, and what closed loops found")
    add("-o", "--out", metavar="PAGE.html", type=Path,
        help="the page (the first file's name with .html, in this folder)")
    add("--overwrite", action="store_true", help="replace an existing file")
    add("--trace", action="append", metavar="FILE", default=[],
        help="a trace of the results; repeatable (the one that each file names, beside it, in this "
             "folder or in data/)")
    add("--no-trace", action="store_true", help="read no traces: kept sets only where --save-keep wrote them, no texts")
    add("--pool", action="store_true", help="means over traces although their layers or lengths differ")
    add("--title", default="", metavar="TEXT", help="title of the page (the traces' names)")
    add("--details", action="append", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_general_options()
    return parser.parse_args(arguments)


def build(paths, details=None, title="", presets=(), hindsight=(), pool=False):
    """The HTML of the page. `details`: a path or None per file. `pool`: traces may differ in shape."""
    from . import detail, pack, verdict
    from .. import load
    blocks = pack.Blocks()
    sources = detail.open_sources(paths, details or [None] * len(paths), blocks)
    if not pool:
        try:
            load.check_poolable([source.results for source in sources])
        except load.Missing as mixed:
            raise DataError(str(mixed)) from None
    models = list(dict.fromkeys(source.results.model for source in sources))
    title = title or "kvsim: " + ", ".join(source.name for source in sources)
    content = {
        "title": title, "verdict": verdict.table(sources, hindsight), "traces": list(map(detail.describe, sources)),
        "presets": {one["preset"]: {key: one[key] for key in ("summary", "source")} for one in presets},
        # Means over models say little.
        "notes": [f"the files are of different models: {', '.join(models)}"] if len(models) > 1 else [],
        "loops": [loop.path.name for source in sources for loop in source.results.loops],
    }
    return pack.page(title, content, blocks)


def find_details(options, folder):
    """Finds of the program in the traces: a path or None per file."""
    if options.no_trace:
        return None
    status = pass_through([
        "details", *options.results, *as_options(
            out=folder, trace=options.trace, progress=options.progress, threads=options.threads,
            quiet=options.quiet, verbose=options.verbose and not options.quiet)])
    if status:
        sys.exit(status)
    found = [Path(folder) / f"{number}.nc" for number, _ in enumerate(options.results, 1)]
    return [one if one.exists() else None for one in found]


def run(options):
    if options.no_trace and options.trace:
        raise UsageError("report: --trace and --no-trace exclude each other")
    target = options.out or Path(options.results[0].stem + ".html")
    check_target(target, options.overwrite, [*options.results, *map(Path, options.trace)])
    with tempfile.TemporaryDirectory(prefix="kvsim-report-") as folder:
        details = options.details or find_details(options, folder)
        # Of presets summary and source; of kinds those that see later queries, whose policies rank no one.
        told = json.loads(run_program(["policies", "--json"], progress=False))
        hindsight = [[stage["stage"], kind["kind"]] for stage in told["stages"]
                     for kind in stage["kinds"] if kind["only_in_presets"]]
        text = build(options.results, details, options.title, told["presets"], hindsight, options.pool)
    write_text(target, text)
    put_line(target)


def main(arguments=None):
    options = parse(arguments)
    return run_tool("kvsim report", lambda: run(options))
