"""Tests of kvsim card. Run: python tests/python/test_card.py"""

import contextlib
import io
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from kvsim import card
from kvsim.studies.folder import COLUMNS

SAMPLE = ROOT / "data" / "sample.h5"


class Card(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def made(self, *words, code=0):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(card.main([*map(str, words), "-q"]), code)
        return said.getvalue()

    def test_a_folder_of_traces(self):
        for name in ("a.h5", "b.h5"):
            shutil.copyfile(SAMPLE, self.folder / name)
        self.made(self.folder, "--license", "cc-by-4.0", "--text-license", "public domain")
        text = (self.folder / "README.md").read_text()
        self.assertTrue(text.startswith('---\nlicense: "cc-by-4.0"\n'))
        self.assertIn("| `b.h5` | HuggingFaceTB/SmolLM2-135M-Instruct | 431 | 208 | 8 of 30 |", text)
        self.assertIn("| `layers/<l>/wo` | 9 × 64 × 576 | float16 |", text)
        self.assertIn("| texts | public domain |", text)
        for name in re.findall(r"^\| `([a-z_]+/?[^`]*)` \|", text, re.M):
            if name not in ("a.h5", "b.h5"):
                self.assertIn(name, card.MEANINGS)
        self.assertIn("exists; --overwrite replaces it",
                      self.made(self.folder, "--license", "other", code=2))

    def test_its_five_lines_read_the_trace(self):
        shutil.copyfile(SAMPLE, self.folder / "a.h5")
        self.made(self.folder / "a.h5", "--license", "other")
        lines = (self.folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.chdir(self.folder):
            exec(lines, {})
        self.assertIn("(3, 639, 64) (9, 639, 64)", shown.getvalue())
        self.assertIn("snapkv", shown.getvalue())

    def test_a_study(self):
        (self.folder / "texts").mkdir()
        (self.folder / "study.json").write_text('{"model": "a|b", "budgets": ["0.1"]}')
        self.assertIn("no tables yet", self.made(self.folder, "--license", "other", code=3))
        (self.folder / "losses.csv").write_text(",".join(COLUMNS) + "\n")
        self.made(self.folder, "--license", "other")
        text = (self.folder / "README.md").read_text()
        self.assertIn('- config_name: "losses"\n  data_files: "losses.csv"', text)
        self.assertIn(f"| `kl` | {COLUMNS['kl']} |", text)
        self.assertIn("a\\|b", text)

    def test_nothing_to_describe(self):
        self.assertIn("no such file or folder", self.made(self.folder / "x", "--license", "o", code=2))
        self.assertIn("found no trace", self.made(self.folder, "--license", "o", code=2))


if __name__ == "__main__":
    unittest.main()
