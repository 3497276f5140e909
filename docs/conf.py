"""The site of the documentation: Sphinx over docs/*.md, the notebooks and the package's docstrings."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

project = "kvsim"
author = "the kvsim authors"
copyright = "the kvsim authors, Apache License 2.0"
version = release = re.search(
    r"VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text().split("project(kvsim")[1])[1]

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "myst_nb"]
source_suffix = {".md": "markdown", ".ipynb": "myst-nb", ".rst": "restructuredtext"}
exclude_patterns = ["requirements.txt"]
html_theme = "furo"
html_title = f"kvsim {version}"
nitpicky = False

# Pages are written for GitHub, too: headings are link targets, pages outside of docs/ are on GitHub.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]
suppress_warnings = ["myst.xref_missing", "myst.header"]

# Notebooks show what they showed when the tests last ran them.
nb_execution_mode = "off"

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch"]
napoleon_google_docstring = True
