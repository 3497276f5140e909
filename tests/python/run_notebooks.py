"""Runs the notebooks of docs/notebooks and looks at what they show. Run: scripts/notebooks.sh

    run_notebooks.py [--write]     --write: the outputs become those of the notebooks
"""

import base64
import io
import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
#: Outputs that every notebook must show, by kind of output.
SHOWN = {"text/html": "retained importance", "image/png": ""}
#: Lines that a dataset unfolds below its summary: commands, folders and the device of the run, too.
RECORD = re.compile("<details><summary>all variables</summary>.*</details>", re.DOTALL)


def run(path):
    """The notebook with its outputs; the cell and its error on standard error when one fails."""
    book = nbformat.read(path, as_version=4)
    client = NotebookClient(book, timeout=600, kernel_name="python3",
                            resources={"metadata": {"path": str(NOTEBOOKS)}})
    try:
        client.execute()
    except CellExecutionError as error:
        sys.exit(f"{path.name}: {error}")
    return book


def outputs(book):
    for cell in book.cells:
        yield from cell.get("outputs", [])


def check(path, book):
    for kind, text in SHOWN.items():
        found = [one["data"][kind] for one in outputs(book) if kind in one.get("data", {})]
        if not any(text in one for one in found):
            sys.exit(f"{path.name}: shows no {kind} with {text!r}")
    warned = [one["text"] for one in outputs(book) if "Warning" in one.get("text", "")]
    if warned:
        sys.exit(f"{path.name}: warns: {warned[0]}")


def small(png):
    """A picture of few colours, as notebooks store it: a third of the bytes."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    file = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def write(path, book):
    """Without bars of progress and what differs between machines: a dataset shows its summary,
    not the record of the run below it."""
    for one in outputs(book):
        data = one.get("data", {})
        if "image/png" in data:
            data["image/png"] = small(data["image/png"])
        if "text/html" in data:
            data["text/html"] = RECORD.sub("", data["text/html"])
            data.pop("text/plain", None)
    for cell in book.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    book.metadata.pop("language_info", None)
    nbformat.write(book, path)


def main():
    # The package of this tree and its program, also in the kernel.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        stored = nbformat.read(path, as_version=4)
        book = run(path)
        check(path, book)
        if "--write" in sys.argv:
            write(path, book)
        else:
            check(path, stored)   # readers see the outputs without running anything
            if any(RECORD.search(one.get("data", {}).get("text/html", "")) for one in
                   outputs(stored)):
                sys.exit(f"{path.name}: holds the record of a run; --write leaves it out")
        print(f"{path.name}: {len(book.cells)} cells")


main()
