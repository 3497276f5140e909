"""Writes the page of results files: write.py RESULTS.nc [MORE.nc ...] -o page.html

Closed loops (kvsim closed-loop) may be among the files. `--details` names, per file and in their
order, what `kvsim report` found in the trace, or `-`. Exit codes are those of kvsim: 0 done,
1 failed, 2 usage, 3 bad data.
"""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    # Run by its path: the package that it belongs to is three folders up.
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    __package__ = "kvsim.plots.report"

from ...errors import Error  # noqa: E402  (the package is known only now)
from ...tool import Parser, put_line, run_tool  # noqa: E402
from ...whole import write_text  # noqa: E402

NONE = "-"


def parse(arguments):
    parser = Parser(prog="kvsim report", description="Writes a page to explore results on.")
    parser.add_argument("results", nargs="+", metavar="RESULTS.nc", type=Path)
    parser.add_argument("-o", "--out", required=True, metavar="PAGE.html", type=Path)
    parser.add_argument("--title", default="", help="title of the page (the traces' names)")
    parser.add_argument("--details", action="append", metavar="FILE",
                        help="what the trace adds to a file, or -; once per file")
    parser.add_argument("--presets", default="[]", metavar="JSON",
                        help="name, summary and source of every preset")
    parser.add_argument("--hindsight", default="[]", metavar="JSON",
                        help="[stage, kind] of every kind that sees later queries")
    return parser.parse_args(arguments)


def build(paths, details=None, title="", presets="[]", hindsight="[]"):
    """The HTML of the page. `details`: a path or None per file."""
    from . import detail, pack, verdict
    from . import sources as inputs
    sources = inputs.open_sources(paths, details or [None] * len(paths))
    blocks = pack.Blocks()
    title = title or "kvsim: " + ", ".join(source.name for source in sources)
    content = {
        "title": title,
        "verdict": verdict.table(sources, json.loads(hindsight)),
        "traces": [detail.describe(source, blocks, k) for k, source in enumerate(sources)],
        "presets": detail.sources_of(presets),
        "notes": verdict.check_same_model(sources),
        "loops": [loop.path.name for source in sources for loop in source.loops],
    }
    return pack.page(title, content, blocks)


def run(options):
    try:
        from .. import load
    except ModuleNotFoundError as error:
        raise Error(f"{sys.executable} has no module {error.name}; install what "
                    "plots/requirements.txt lists") from None
    details = [None if one == NONE else one for one in options.details or []]
    if details and len(details) != len(options.results):
        raise load.usage_error(f"{len(details)} --details for {len(options.results)} files")
    text = build(options.results, details, options.title, options.presets, options.hindsight)
    write_text(options.out, text)
    put_line(options.out)


def main(arguments=None):
    options = parse(arguments)
    return run_tool("kvsim report", lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
