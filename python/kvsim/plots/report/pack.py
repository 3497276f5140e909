"""Numbers and texts as blocks of one HTML file that loads nothing and runs nothing else.

A block is base64 of gzip of little-endian numbers or UTF-8; the page unpacks it when it is looked
at. Scripts and styles are allowed by their SHA-256 alone, so that no text of a trace can run."""

import base64
import gzip
import hashlib
import html
import json
from pathlib import Path
from string import Template

import numpy as np

from .. import looks

HERE = Path(__file__).resolve().parent
SCRIPTS = ("types.js", "data.js", "state.js", "format.js", "charts.js", "verdict.js", "steps.js",
           "text.js", "lookups.js", "layers.js", "spans.js", "record.js", "main.js")
LEVEL = 6   # of gzip: higher ones take long and win little


class Blocks:
    """The blocks of a page by name, packed as they are added."""

    def __init__(self):
        self.packed = []

    def numbers(self, name, values, kind):
        """Adds an array as `kind`: float16, float32, uint8, uint16, int32. Returns the name."""
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(values, np.dtype(kind).newbyteorder("<"))
        return self._add(name, kind, array.tobytes())

    def text(self, name, value):
        """Adds anything that JSON can hold."""
        return self._add(name, "json", json.dumps(value, ensure_ascii=False,
                                                  allow_nan=False).encode("utf-8", "replace"))

    def _add(self, name, kind, data):
        packed = base64.b64encode(gzip.compress(data, LEVEL, mtime=0)).decode("ascii")
        self.packed.append((name, kind, packed))
        return name


def script_text(value):
    """JSON that may stand in a <script>: no `<`, `>` or `&`, so that nothing in it ends the element
    or begins a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def allowed(text):
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def colours():
    """The colours of policies as variables --c0, --c1, ... of a light and a dark page."""
    return "".join(f"{theme} {{ " + " ".join(f"--c{k}: {pair[column]};" for k, pair in
                                             enumerate(looks.COLOURS)) + " }\n"
                   for column, theme in enumerate((":root", ':root[data-theme="dark"]')))


def page(title, content, blocks):
    """The HTML of a page: `content` is what its script reads first, as JSON."""
    library = (HERE / "vendor" / "d3.min.js").read_text(encoding="utf-8")
    licence = (HERE / "vendor" / "d3.LICENSE").read_text(encoding="utf-8")
    style = colours() + (HERE / "page" / "style.css").read_text(encoding="utf-8")
    own = "".join((HERE / "page" / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{own}\nstart();\n}})();\n'
    policy = f"default-src 'none'; script-src {allowed(library)} {allowed(script)}; " \
             f"style-src {allowed(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    parts = {
        "TITLE": html.escape(title), "POLICY": html.escape(policy), "LICENCE": html.escape(licence),
        "STYLE": f"<style>{style}</style>", "LIBRARY": f"<script>{library}</script>",
        "CONTENT": f'<script type="application/json" id="content">{script_text(content)}</script>',
        "BLOCKS": "\n".join(
            f'<script type="text/plain" id="block-{html.escape(name)}" data-kind="{kind}">'
            f"{packed}</script>" for name, kind, packed in blocks.packed),
        "SCRIPT": f"<script>{script}</script>",
    }
    return Template((HERE / "page" / "page.html").read_text(encoding="utf-8")).substitute(parts)
