"""What the tests of the page share: the program, a results file's numbers, a browser."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import h5py

from browser import Browser

ROOT = Path(__file__).resolve().parent.parent.parent
KVSIM = os.environ.get("KVSIM_BIN", str(ROOT / "build" / "kvsim"))
PYTHON = os.environ.get("KVSIM_PYTHON") or \
    Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvsim/plots/bin/python"


def kvsim(*arguments, code=0):
    done = subprocess.run([KVSIM, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)
    if done.returncode != code:
        raise AssertionError(f"{arguments}: {done.returncode}\n{done.stderr}")
    return done


class Results:
    """Numbers of a results file by the names that the page shows."""

    def __init__(self, path):
        self.file = h5py.File(path)
        self.policies = [one.decode() for one in self.file["policy"][:]]
        self.budgets = [one.decode() for one in self.file["budget_label"][:]]
        self.layers = self.file["layer"][:].tolist()
        self.steps = self.file["step"][:].tolist()

    def __getitem__(self, name):
        return self.file[name][:]

    def at(self, name, policy, budget):
        return self[name][self.policies.index(policy), self.budgets.index(budget)]


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="kvsim-report-test"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def shown(self, text):
        """A number as the page prints it."""
        return float(text.replace("\u2212", "-").replace("\u2605", "").replace(",", "").strip())

    def quiet(self, page):
        """Nothing was complained of, nothing was asked for but the page itself."""
        console, requests = self.browser.logs()
        self.assertEqual(console, [])
        others = [one for one in requests if not one.startswith((f"file://{page}", "data:,"))]
        self.assertEqual([one for one in others if one != "about:blank"], [])
        self.assertIn(f"file://{page}", {one.split("#")[0] for one in requests})
