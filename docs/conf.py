"""The site of the documentation: Sphinx over docs/*.md and the docstrings of the package."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

# The first page lists the others.
INDEX = """# kvsim

If this KV cache had been compressed this way, what would each later token have lost? kvsim replays captured attention
tensors of a language model offline. It answers for every policy, budget, layer and step.
"""
PARTS = {
    "Use it": ("concepts", "guide", "presets", "study", "models", "engines", "speed"),
    "Look up": ("cli", "python", "policies", "metrics", "trace-format", "results", "report"),
    "Background": ("architecture", "debugging", "security"),
}
for caption, names in PARTS.items():
    listed = "\n".join(name for name in names if Path(__file__).with_name(f"{name}.md").is_file())
    INDEX += f"\n```{{toctree}}\n:caption: {caption}\n:maxdepth: 2\n\n{listed}\n```\n"
page = Path(__file__).with_name("index.md")
if not page.is_file() or page.read_text() != INDEX:
    page.write_text(INDEX)

project = "kvsim"
author = "the kvsim authors"
copyright = "the kvsim authors, Apache License 2.0"
project_line = (ROOT / "CMakeLists.txt").read_text().split("project(kvsim")[1]
version = release = re.search(r"VERSION ([0-9.]+)", project_line)[1]

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "myst_parser"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"kvsim {version}"
nitpicky = False

# Pages are read in the repository, too: they link to files beside docs/.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]
suppress_warnings = ["myst.xref_missing", "myst.header"]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch", "transformers", "kvpress"]
napoleon_google_docstring = True
