"""The data card of traces or of a study: a README.md in the form that data hubs read.

Says what the files are, how they were made, their fields with shapes and types, licences of texts and
weights, and how to read them."""

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import DataError, UsageError
from .plain import counted, printable
from .tool import Parser, run_tool
from .whole import check_target, write_text

if TYPE_CHECKING:
    from .trace import Trace

#: Dataset of a trace, `<l>` for a layer's number -> what it is (docs/trace-format.md).
MEANINGS = {
    "query_position": "positions whose queries are stored", "layers/<l>/q": "queries, after RoPE",
    "layers/<l>/k": "keys, after RoPE", "layers/<l>/v": "values",
    "layers/<l>/wo": "output projection by query head",
    "layers/<l>/residual_norm": "L2 norm of the residual stream that enters the layer",
    "layers/<l>/attention_sink": "logit of a softmax column without a value",
    "layers/<l>/check_output": "outputs by query head before W_O, as the model computed them",
    "tokens/id": "token ids", "tokens/text": "text that each token adds",
    "spans/name": "labelled parts of the prompt", "spans/begin": "first token of a span",
    "spans/end": "token behind a span", "check/query_position": "positions of check_output",
    "rope/inv_freq": "frequencies of RoPE",
}


def traces_of(path: Path) -> list[Path]:
    """A trace, or those of a folder, by name."""
    if path.is_file():
        return [path]
    found = sorted(path.glob("*.h5"))
    if not found:
        raise UsageError(f"{path}: found no trace (*.h5) and no study.json, expected a trace, a folder "
                         "of traces, or a study")
    return found


def fields(trace: "Trace", found: dict[tuple[str, str], set[str]]) -> None:
    """Adds the shapes of every dataset of a trace by path and type, layers taken together."""
    def add(name: str, one) -> None:
        if hasattr(one, "shape"):
            named = re.sub(r"^layers/\d+/", "layers/<l>/", name)
            kind = "string" if one.dtype.kind == "O" else str(one.attrs.get("encoding", one.dtype))
            found.setdefault((named, kind), set()).add(" × ".join(map(str, one.shape)) or "scalar")

    trace._file.visititems(add)


def head(title: str, license_: str, tables: dict[str, str] | None = None) -> list[str]:
    """The YAML that data hubs read; JSON strings are YAML's, too."""
    lines = ["---", f"license: {json.dumps(license_)}", f"pretty_name: {json.dumps(title)}",
             "tags: [kv-cache, attention, kvsim]"]
    if tables:
        lines += ["configs:", *(line for name, file in tables.items() for line in (
            f"- config_name: {json.dumps(name)}", f"  data_files: {json.dumps(file)}"))]
    return [*lines, "---", "", f"# {cell(title)}", ""]


def cell(text: object) -> str:
    """A text of a file in a Markdown table or heading."""
    return printable(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def code(text: object) -> str:
    """A name in a table's cell."""
    return "`" + printable(text).replace("|", "\\|").replace("`", "'") + "`"


def table(names: tuple[str, ...], rows: list[tuple]) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names),
            *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def licences(args: argparse.Namespace) -> list[str]:
    return ["## Licences", "", *table(("of", "licence"), [
        ("these files", cell(args.license)), ("texts", cell(args.text_license)),
        ("weights of the model", cell(args.weights_license or "see the model's own page"))])]


def of_traces(paths: list[Path], args: argparse.Namespace) -> str:
    from .trace import Trace

    files, sources = [], []
    known: dict[tuple[str, str], set[str]] = {}
    models: dict[str, None] = {}
    for path in paths:
        with Trace(path) as one:
            models[one.model], size = None, path.stat().st_size
            files.append((code(path.name), cell(one.model), one.prompt_len,
                          one.total_len - one.prompt_len, f"{len(one.layers)} of {one.num_layers}",
                          f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"))
            sources.append((code(path.name), cell(source_of(one))))
            fields(one, known)
    title = args.title or f"Attention of {', '.join(models)}"
    return "\n".join([
        *head(title, args.license),
        f"{counted(len(paths), 'trace')} of what entered the attention layers of "
        f"{cell(', '.join(models))}: queries, keys, values and output projections over a prompt and "
        "later tokens. kvsim replays policies for the KV cache on them.", "", "## Files", "",
        *table(("file", "model", "prompt tokens", "later tokens", "layers", "size"), files),
        "## Fields", "", "`<l>` is a layer. The format is kvtrace 1, an HDF5 file.", "",
        *table(("dataset", "shape", "type", "meaning"), [
            (code(name), " or ".join(sorted(shapes)), cell(kind), MEANINGS.get(name, ""))
            for (name, kind), shapes in known.items()]),
        "## How they were made", "", *table(("file", "record"), sources), *licences(args),
        "## Read them", "", "```python", "import kvsim",
        f"trace = kvsim.Trace({json.dumps(paths[0].name)})",
        "layer = trace.layer(trace.layers[0])", "print(layer.keys.shape, layer.queries.shape)",
        f"print(kvsim.replay({json.dumps(paths[0].name)}, ['snapkv', 'h2o'], [0.2, 0.5]).kvsim.summary)",
        "```", "", "From a shell, the whole folder: `kvsim replay . -o results`.", ""])


def source_of(trace: "Trace") -> str:
    """How a trace says that it was made, in one line."""
    wanted = ("tool", "command", "model_source", "model_dtype", "stored_dtype", "libraries",
              "config_sha256", "token_ids_sha256")
    told = {name: trace.source[name] for name in wanted if name in trace.source}
    return "; ".join(f"{name}: {one if isinstance(one, str) else json.dumps(one)}"
                     for name, one in told.items()) or "not said"


def of_study(path: Path, args: argparse.Namespace) -> str:
    from .studies import folder

    study = folder.Folder(path)
    settings = study.settings()
    found = [one.name for one in sorted(path.glob("*.csv"))]
    if not found:
        raise DataError(f"{path}: no tables yet: found no *.csv; kvsim study writes them when a text is "
                        "finished")
    title = args.title or f"What {settings.get('model')} loses with a compressed KV cache"
    texts = study.listed()
    lines = [*head(title, args.license, {name.removesuffix(".csv"): name for name in found}),
             "A study made by kvsim: the model was run with what each "
             "policy keeps of the KV cache. `index.html` shows it.", "", "## Settings", "",
             *table(("setting", "value"), [(cell(name), cell(value)) for name, value in settings.items()]),
             "## Tables", ""]
    for name in found:
        lines += [f"### `{name}`", ""]
        names = (path / name).open(encoding="utf-8").readline().strip().split(",")
        lines += table(("column", "meaning"), [(code(one), folder.TABLES.get(name, {}).get(one, ""))
                                               for one in names])
    if len(texts):
        lines += ["## Texts", "", *table(("text", "category", "prompt tokens", "from", "sha256"), [
            (cell(one.text), cell(one.category), one.prompt_tokens, cell(one.origin), one.sha256)
            for one in texts.itertuples()])]
    return "\n".join([
        *lines, *licences(args), "## Read it", "", "```python", "import pandas",
        f"table = pandas.read_csv({json.dumps('losses.csv' if 'losses.csv' in found else found[0])})",
        "print(table.head())", "from kvsim.studies.api import opened",
        f"print(opened({json.dumps(path.name)}).leaderboard())", "```", ""])


def parser() -> Parser:
    p = Parser(prog="kvsim card", description=__doc__)
    p.add_argument("path", type=Path, metavar="TRACE|FOLDER|STUDY")
    p.add_argument("--license", required=True, metavar="ID",
                   help="of the files, as data hubs name it, such as cc-by-4.0 or other")
    p.add_argument("--text-license", default="not said", metavar="TEXT", help="of the texts (not said)")
    p.add_argument("--weights-license", metavar="TEXT", help="of the model's weights (see its page)")
    p.add_argument("--title", metavar="TEXT")
    p.add_argument("-o", "--out", type=Path, metavar="FILE", help="the card (README.md beside the files)")
    p.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    p.add_argument("-q", "--quiet", action="store_true")
    return p


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)

    def work() -> None:
        if not args.path.exists():
            raise UsageError(f"{args.path}: no such file or folder")
        is_study = (args.path / "study.json").is_file()
        text = of_study(args.path, args) if is_study else of_traces(traces_of(args.path), args)
        folder = args.path if args.path.is_dir() else args.path.parent
        target = args.out or folder / "README.md"
        check_target(target, args.overwrite, [])
        write_text(target, text)
        if not args.quiet:
            print(f"{target} written")

    return run_tool("kvsim card", work)
