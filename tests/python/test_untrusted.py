"""Files of somebody else: docs/security.md. Run: python tests/python/test_untrusted.py

Needs KVSIM_BIN or build/kvsim and the modules of plots/requirements.txt; without them one line says
so and nothing is tested.
"""

import csv
import fcntl
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import h5py
import numpy as np

import kvsim
import kvsim.program
from kvsim.plain import csv_cell, printable

PROGRAM = kvsim.program.find_program()

ESCAPE, C1, OVERRIDE = "\x1b[2J\x1b]0;owned\x07", "\x9b31m", "\u202e"
WORDS = [ESCAPE, C1, OVERRIDE + "gnp.exe", "\rover", "a\bb", "<script>alert(1)</script>", "$x^2$",
         "\\frac{", "=1+1", "@SUM(A1)", "../../x", "\u2066x", "a\nb", "\x00"[:0] or "plain"]
#: A span's name has no white space, control character of ASCII, + , or =.
SPANS = [C1 + "a", OVERRIDE + "b", "$\\frac$", "<b>&amp;", "../up", "@SUM(1)", "-1;x"]
#: Signs that no terminal may see: controls but the line end, ISO 6429's, and what turns a line round.
DRIVES = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def hostile_trace(path):
    kvsim.synth(path, prompt=64, steps=16, num_layers=2)
    with h5py.File(path, "r+") as file:
        if "tokens" in file:
            del file["tokens"]
        if "spans" in file:
            del file["spans"]
        text = h5py.string_dtype("utf-8")
        file.create_dataset("tokens/text", data=[WORDS[k % len(WORDS)] for k in range(80)],
                            dtype=text)
        file.create_dataset("spans/name", data=SPANS, dtype=text)
        file.create_dataset("spans/begin", data=np.arange(len(SPANS)) * 8)
        file.create_dataset("spans/end", data=np.arange(len(SPANS)) * 8 + 8)
        file.attrs["model"] = "../../" + ESCAPE + C1 + OVERRIDE + "$m$"
        file.attrs["source"] = ESCAPE + C1


class Untrusted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.outer = Path(cls.holder.name)
        cls.folder = cls.outer / "work"
        cls.folder.mkdir()
        hostile_trace(cls.folder / "$trace$.h5")
        cls.kvsim("replay", "$trace$.h5", "--policy", "snapkv", "--policy", "knorm", "--budget",
                  "0.25,0.5", "--save-keep", "--metric", "span_retained_importance_step", "--csv", "table.csv",
                  "-o", "=out.nc")

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    @classmethod
    def kvsim(cls, *words, code=0):
        """Output of a command; nothing of it may drive a terminal."""
        done = subprocess.run([PROGRAM, *words], cwd=cls.folder, capture_output=True,
                              env={**os.environ, "KVSIM_PYTHON": sys.executable})
        said = done.stdout.decode("utf-8") + done.stderr.decode("utf-8")   # and is UTF-8
        assert done.returncode == code, said
        found = DRIVES.search(said)
        if found is not None:
            near = said[max(0, found.start() - 100):found.end() + 100]
            raise AssertionError(f"{' '.join(words)} prints {found[0]!r}: {near!r}")
        return said

    def test_commands_print_nothing_that_drives_the_terminal(self):
        for words in (("inspect", "$trace$.h5"), ("inspect", "$trace$.h5", "--json"),
                      ("verify", "$trace$.h5"), ("explain", "=out.nc"),
                      ("explain", "=out.nc", "--json"),
                      ("report", "=out.nc", "-o", "page.html", "--overwrite")):
            with self.subTest(words[0]):
                self.kvsim(*words)

    def test_errors_show_what_they_found_harmlessly(self):
        with h5py.File(self.folder / "bad.h5", "w") as file:
            file.attrs["format"] = ESCAPE + C1 + OVERRIDE
        self.assertIn("\\x1b", self.kvsim("inspect", "bad.h5", code=3))
        (self.folder / "bad.toml").write_text(f'budgets = ["{OVERRIDE}"]\n[[policy]]\n'
                                              'preset="knorm"\n')
        self.assertIn("\\u202e", self.kvsim("sweep", "bad.toml", "-o", "x", code=2))
        (self.folder / "bad.search.toml").write_text(
            f'base = "knorm"\nbudgets = [0.5]\n"{OVERRIDE}" = 1\n[vary]\nsinks = [0, 4]\n'
            '[traces]\nsearch = ["$trace$.h5"]\n')
        self.assertIn("\\u202e", self.kvsim("search", "bad.search.toml", "-o", "x", code=2))

    def test_figures_show_names_as_they_are_and_stay_in_their_folder(self):
        before = sorted(path.name for path in self.outer.iterdir())
        said = self.kvsim("plot", "=out.nc", "-o", "figs", "--formats", "png,csv")
        written = [line for line in said.splitlines() if line.startswith("figs")]
        self.assertGreater(len(written), 5)
        for line in written:
            self.assertTrue((self.folder / line).resolve().is_relative_to(
                (self.folder / "figs").resolve()))
        self.assertEqual(sorted(path.name for path in self.outer.iterdir()), before)
        for path in (self.folder / "figs").rglob("*.csv"):
            self.no_formula(path.read_text(encoding="utf-8"))

    def no_formula(self, text):
        for row in csv.reader(io.StringIO(text)):
            for cell in row:
                if cell[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") and cell:
                    float(cell)   # a number, or it fails

    def test_tables_hold_no_formulas(self):
        text = (self.folder / "table.csv").read_text(encoding="utf-8")
        self.assertIn("'@SUM(1)", text)
        self.no_formula(text)
        self.assertEqual(csv_cell("=1+1"), "'=1+1")
        self.assertEqual(csv_cell("-0.5"), "-0.5")
        self.assertEqual(csv_cell(-0.5), -0.5)
        self.assertEqual(printable(ESCAPE + C1 + OVERRIDE + "é"),
                         "\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\u202eé")

    def test_results_that_name_files_elsewhere_get_nothing_of_them(self):
        """The trace of results is found by its path, and must have their digest."""
        other = self.outer / "other.h5"
        kvsim.synth(other, prompt=64, steps=16, num_layers=2, seed=9)
        copy = self.folder / "elsewhere.nc"
        copy.write_bytes((self.folder / "=out.nc").read_bytes())
        with h5py.File(copy, "r+") as file:
            file.attrs["trace"] = "other.h5"
            file.attrs["trace_path"] = "../other.h5"
        self.assertIn("other.h5", self.kvsim("explain", "elsewhere.nc", code=3))

    def test_links_into_other_files_are_refused_by_what_python_reads(self):
        for name, kind, target in (("$trace$.h5", kvsim.Trace, "layers/1/k"),
                                   ("=out.nc", kvsim.open_results, "retained_importance")):
            for lead in ("link", "virtual"):
                with self.subTest(f"{name} {lead}"):
                    copy = self.folder / f"{lead}{Path(name).suffix}"
                    copy.write_bytes((self.folder / name).read_bytes())
                    with h5py.File(copy, "r+") as file:
                        shape, dtype = file[target].shape, file[target].dtype
                        del file[target]
                        if lead == "link":
                            file[target] = h5py.ExternalLink(name, target)
                        else:
                            layout = h5py.VirtualLayout(shape, dtype)
                            layout[...] = h5py.VirtualSource(name, target, shape, dtype)
                            file.create_virtual_dataset(target, layout)
                    with self.assertRaisesRegex(
                            kvsim.Error, f"{target}: not allowed: found a (link to another file|virtual)"):
                        kind(copy)

    def test_a_results_file_cannot_have_a_function_run(self):
        (self.folder / "evil.py").write_text("open('owned', 'w')\ndef f(layer):\n    pass\n")
        copy = self.folder / "evil.nc"
        copy.write_bytes((self.folder / "=out.nc").read_bytes())
        with h5py.File(copy, "r+") as file:
            names = file["policy"][:]
            names[:] = ["python:evil.py:f", "knorm"]
            file["policy"][:] = names
        for words in (("explain", "evil.nc"), ("merge", "evil.nc", "-o", "m.nc"),
                      ("report", "evil.nc", "-o", "evil.html"),
                      ("plot", "evil.nc", "-o", "figs2", "--formats", "png")):
            subprocess.run([PROGRAM, *words], cwd=self.folder, capture_output=True,
                           env={**os.environ, "KVSIM_PYTHON": sys.executable})
            self.assertFalse((self.folder / "owned").exists(), words[0])

    def test_nothing_in_the_package_reads_pickles(self):
        for path in (ROOT / "python").rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for word in ("import pickle", "torch.load(", "yaml.load(", "allow_pickle=True",
                         "trust_remote_code=True", "shell=True", "os.system("):
                self.assertNotIn(word, text, path)

    def test_json_of_inspect_is_json(self):
        told = json.loads(self.kvsim("inspect", "$trace$.h5", "--json"))
        self.assertEqual(len(told["spans"]), len(SPANS))


#: State of a file -> what every reader must say of it.
STATES = {"locked": ": locked: another program has it open for writing",
          "forbidden": ": Permission denied",
          "empty": ": an empty file|: not a results file: found an empty file",
          "text": ": not an HDF5 file|: not a results file: found text",
          "truncated": ": truncated: found",
          "damaged": ": damaged: the HDF5 library cannot open it"}


class Unreadable(unittest.TestCase):
    """A file that cannot be opened: every reader says the true reason, in the same words."""

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.holder.name)
        cls.folder.chmod(0o755)
        kvsim.synth(cls.folder / "t.h5", prompt=64, steps=8)
        subprocess.run([PROGRAM, "replay", "t.h5", "-q", "-o", "r.nc", "--policy", "snapkv",
                        "--save-keep"], cwd=cls.folder, check=True)
        for name in ("t.h5", "r.nc"):
            whole = (cls.folder / name).read_bytes()
            odd = bytearray(whole)
            odd[8] = 77   # the version of the superblock
            for state, data in (("locked", whole), ("forbidden", whole), ("empty", b""),
                                ("text", b"hello\n"), ("truncated", whole[:len(whole) // 2]),
                                ("damaged", bytes(odd))):
                (cls.folder / f"{state}-{name}").write_bytes(data)
            (cls.folder / f"forbidden-{name}").chmod(0)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def said(self, words, user=None):
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, user=user,
                              env={**os.environ, "KVSIM_PYTHON": sys.executable, "HOME": "/tmp"})
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def states(self, name):
        """Each state with its file, and what must be said; one is held as HDF5's writers hold theirs."""
        with open(self.folder / f"locked-{name}", "r+b") as writer:
            fcntl.flock(writer, fcntl.LOCK_EX)
            for state, message in STATES.items():
                yield state, f"{state}-{name}", f"{state}-{name}({message})"

    def test_commands(self):
        for name, commands in (("t.h5", ("inspect", "verify", "replay")),
                               ("r.nc", ("inspect", "explain", "report", "plot"))):
            for state, file, message in self.states(name):
                if state == "forbidden" and os.geteuid() == 0:
                    continue   # root may read all; below as somebody else
                for command in commands:
                    out = [] if command in ("inspect", "verify", "explain") else ["-o", "out"]
                    self.assertRegex(self.said([PROGRAM, command, file, *out]), message)

    def test_python(self):
        from kvsim.kvtrace.kept_sets import ResultsFile

        for name, readers in (("t.h5", (kvsim.Trace,)),
                              ("r.nc", (kvsim.open_results, ResultsFile))):
            for state, file, message in self.states(name):
                if state == "forbidden" and os.geteuid() == 0:
                    continue
                for reader in readers:
                    with self.assertRaisesRegex(kvsim.DataError, message):
                        reader(self.folder / file)

    def test_budgets_are_a_list_however_they_are_typed(self):
        from kvsim.kvtrace.kept_sets import ResultsFile

        results = ResultsFile(self.folder / "r.nc")
        known = results.budget_labels
        self.assertEqual(results.choose(["10%,.3", "0.70"], known, "budget"),
                         [known.index(one) for one in ("0.1", "0.3", "0.7")])

    def test_a_file_that_opens_and_holds_damaged_objects(self):
        from kvsim.kvtrace.kept_sets import ResultsFile

        odd = bytearray((self.folder / "r.nc").read_bytes())
        odd[200:260] = b"\xff" * 60   # of the root group
        (self.folder / "inside-r.nc").write_bytes(odd)
        message = "inside-r.nc: (damaged: the HDF5 library cannot read all of it|.* a damaged object)"
        for command, *out in (("inspect",), ("rank",), ("explain",), ("plot", "-o", "out")):
            self.assertRegex(self.said([PROGRAM, command, "inside-r.nc", *out]), message)
        for reader in (kvsim.open_results, ResultsFile):
            with self.assertRaisesRegex(kvsim.DataError, message):
                reader(self.folder / "inside-r.nc")

    def test_a_trace_that_opens_and_holds_damaged_objects(self):
        whole = (self.folder / "t.h5").read_bytes()
        said = set()
        for begin in range(96, 3000, 100):
            odd = bytearray(whole)
            odd[begin:begin + 60] = b"\xff" * 60
            (self.folder / "inside-t.h5").write_bytes(odd)
            try:
                with kvsim.Trace(self.folder / "inside-t.h5") as trace:
                    for layer in trace:
                        self.assertGreater(layer.keys.size, 0)
            except kvsim.DataError as error:
                said.add(str(error).partition("inside-t.h5: ")[2].partition(":")[0])
        self.assertIn("damaged", said)
        self.assertFalse([one for one in said if "synchronously" in one or "iteration" in one])

    @unittest.skipUnless(os.geteuid() == 0, "becomes somebody else, as root can")
    def test_missing_rights(self):
        try:   # the program must be where everybody may look
            shown = Path(shutil.copy(PROGRAM, self.folder / "kvsim"))
            shown.chmod(0o755)
            subprocess.run([shown, "--version"], user="nobody", check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"nobody cannot run it: {error}")
        for command, name in (("inspect", "t.h5"), ("verify", "t.h5"), ("inspect", "r.nc"),
                              ("explain", "r.nc")):
            self.assertIn(f"forbidden-{name}: Permission denied",
                          self.said([shown, command, f"forbidden-{name}"], user="nobody"))


if __name__ == "__main__":
    unittest.main()
