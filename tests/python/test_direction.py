"""Nothing of the product imports or starts what lies in studies/. Run: python tests/python/test_direction.py"""

import ast
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "studies"
#: Names that shell scripts and C++ would start or read; links and mentions of pages (.md) are free.
STARTED = re.compile(r"studies/[\w./-]*\.(?:sh|py|csv|toml)\b|\bfindings\.\w+")
#: Runs the tests of the studies, and copies nothing from there.
FREE = {"tests/group.sh", "tests/python/test_direction.py"}


def files(*endings):
    """Files of the repository outside of studies/ with one of these endings."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\n") if name.endswith(endings)
            and not name.startswith("studies/") and name not in FREE and (ROOT / name).is_file()]


def imported(path):
    """Names of the modules that a Python file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


class Direction(unittest.TestCase):
    def test_no_module_of_the_studies_is_imported(self):
        own = {one.stem for one in STUDIES.glob("*.py")} | {"findings"}
        listed = files(".py")
        self.assertGreater(len(listed), 150)
        for path in listed:
            for module in imported(path):
                self.assertNotIn(module.split(".")[0], own, path.relative_to(ROOT))

    def test_no_script_and_no_table_of_the_studies_is_used(self):
        for path in files(".py", ".sh", ".cpp", ".hpp", ".cmake", ".smk", "Snakefile", "CMakeLists.txt"):
            found = STARTED.search(path.read_text(encoding="utf-8"))
            self.assertIsNone(found, path.relative_to(ROOT))


if __name__ == "__main__":
    unittest.main()
