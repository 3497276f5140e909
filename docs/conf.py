"""The site of the documentation: Sphinx over docs/*.md and the docstrings of the package."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

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
