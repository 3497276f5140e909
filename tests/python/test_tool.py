"""Tests of what commands written in Python say of their options and of how far they are, and of the folders in
which they keep finished units. Run: python tests/python/test_tool.py"""

import ast
import contextlib
import errno
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import kvsim
from kvsim import units
from kvsim.commands import COMMANDS
from kvsim.errors import UsageError
from kvsim.progress import Progress
from kvsim.tool import Parser


class Options(unittest.TestCase):
    def setUp(self):
        self.parser = Parser(prog="kvsim tell")
        self.parser.add_argument("words", nargs="*")
        self.parser.add_argument("-o", "--out")
        self.parser.add_argument("-q", action="store_true")

    def refused(self, *words):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as left:
            self.parser.parse_args(words)
        self.assertEqual(left.exception.code, 2)
        return said.getvalue()

    def test_an_empty_value_is_refused(self):
        for words, option in ((["-o", ""], "-o"), (["--out="], "--out"), (["a", "--out", "", "b"], "--out")):
            self.assertEqual(self.refused(*words),
                             f"kvsim tell: {option}: its value is empty; see --help\n")

    def test_an_unknown_one_is_one_line(self):
        self.assertEqual(self.refused("--ou\x1b[2J"), "kvsim tell: unknown option: found "
                         "--ou\\x1b[2J (did you mean --out?); see --help\n")

    def test_a_near_one_is_named(self):
        for typed in ("--outs", "--oout=x"):
            self.assertEqual(self.refused(typed), f"kvsim tell: unknown option: found "
                             f"{typed.partition('=')[0]} (did you mean --out?); see --help\n")

    def test_others_are_taken(self):
        found = self.parser.parse_args(["", "a=", "-", "-q", "--out=b="])
        self.assertEqual((found.words, found.q, found.out), (["", "a=", "-"], True, "b="))


class Help(unittest.TestCase):
    def test_it_needs_no_package(self):
        bare = [sys.executable, "-S", "-P", "-m", "kvsim"]   # -S: no installed packages
        own = {"PYTHONPATH": str(ROOT / "python"), "HOME": "/nonexistent", "PATH": "/nonexistent"}
        for name, one in COMMANDS.items():
            if "summary" not in one:
                continue   # the program's own, without a help page
            with self.subTest(name):
                done = subprocess.run([*bare, name, "--help"], env=own, capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertTrue(done.stdout.startswith(f"Usage: kvsim {name} "), done.stdout)
                done = subprocess.run([*bare, name, "x"], env=own, capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
                self.assertIn(f"kvsim: {name}: no Python has {', '.join(one['needs'])}: ", done.stderr)


class Far(unittest.TestCase):
    """How far work is, where standard error is no terminal."""

    def said(self, tell=True, **how):
        with mock.patch("sys.stderr", io.StringIO()) as said:
            progress = Progress(**how)
            for share, what in ((0.25, "a: first"), (0.5, "a: second"), (0.75, "b: first")):
                progress.tell(what, share) if tell else progress.show(share, what)
            progress.close()
        return said.getvalue().splitlines()

    def test_a_log_has_a_line_for_each_part(self):
        lines = self.said(log="kvsim tell")
        self.assertEqual([one.split(" (")[0] for one in lines], ["kvsim tell: a: first", "kvsim tell: b: first"])
        self.assertRegex(lines[1], r"^kvsim tell: b: first \(0 s left\), 75%$")

    def test_json_has_every_step_and_quiet_nothing(self):
        told = list(map(json.loads, self.said(json=True, quiet=True)))
        self.assertEqual([one["progress"] for one in told], [0.25, 0.5, 0.75])
        self.assertEqual(self.said(quiet=True, log="kvsim tell"), [])
        self.assertEqual(self.said(), [])

    def test_what_asks_for_a_bar_gets_one(self):
        with mock.patch("kvsim.progress.SHORT", 0):
            self.assertIn("0% |", "".join(self.said(tell=False, wanted=True)))


class Units(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.lines = units.Lines(self.folder / "new" / "units.jsonl")

    def test_a_line_that_a_stop_cut_counts_for_nothing_and_is_written_again(self):
        self.lines.add({"a": 1}, {"a": 2})
        whole = self.lines.path.read_bytes()
        with self.lines.path.open("ab") as file:
            file.write(b'{"a": 3')
        self.assertEqual(self.lines.read(), [{"a": 1}, {"a": 2}])
        self.lines.add({"a": 3})
        self.assertEqual(self.lines.path.read_bytes(), whole + b'{"a": 3}\n')
        self.assertEqual(self.lines.read(), units.Lines(self.lines.path).read())

    def test_what_cannot_be_written_leaves_nothing(self):
        self.lines.add({"a": 1})
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(units.os, "fsync", side_effect=full), self.assertRaisesRegex(OSError, "No space"):
            self.lines.add({"a": 2}, {"a": 3})
        self.assertEqual(self.lines.path.read_bytes(), b'{"a": 1}\n')

    def test_names_that_are_no_unicode_come_back(self):
        self.lines.add({"file": "\udcff.h5", "text": "é"})
        self.assertEqual(units.Lines(self.lines.path).read(), [{"file": "\udcff.h5", "text": "é"}])

    def test_a_worker_is_alive_as_long_as_its_process(self):
        one, other = units.Worker(self.folder), units.Worker(self.folder)
        self.assertTrue(other.is_alive(one.name))
        one.lock.release()   # as the system does when it is killed
        self.assertFalse(other.is_alive(one.name))
        other.close()
        self.assertFalse(other.is_alive(other.name))

    def test_shards_have_every_unit_once(self):
        found = [units.share_of(list(range(7)), (i, 3)) for i in (1, 2, 3)]
        self.assertEqual(found, [[0, 3, 6], [1, 4], [2, 5]])
        self.assertEqual(units.share_of([1, 2], None), [1, 2])

    def test_jobs_are_done_in_their_order_and_told_as_shares_of_all(self):
        told = []
        jobs = [[lambda tell: tell("a: half", 0.5), lambda tell: tell("a: done", 1)],
                [lambda tell: tell("b", 0.5)]]
        units.work_off(jobs, lambda *one: told.append(one))
        self.assertEqual(told, [("[1/2] a: half", 0.25), ("[1/2] a: done", 0.5), ("[2/2] b", 0.75)])

    def test_units_that_were_made_in_another_way_are_refused(self):
        units.check_same("here", {"steps": 12, "more": 1}, {"steps": 12})
        with self.assertRaisesRegex(UsageError, "here: made with steps 12: found 8; expected the same"):
            units.check_same("here", {"steps": 12}, {"steps": 8})


class Reference(unittest.TestCase):
    def test_the_page_says_what_the_docstrings_say(self):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "reference.py", "--check"],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_type_checkers_are_told_of_every_name(self):
        stub = ast.parse((ROOT / "python/kvsim/__init__.pyi").read_text())
        told = {name.asname: node.module for node in stub.body if isinstance(node, ast.ImportFrom)
                for name in node.names}
        self.assertEqual({name: home for name, home in told.items() if home != "errors"}, kvsim._HOME_OF)
        self.assertLessEqual(set(kvsim.__all__), set(told))


if __name__ == "__main__":
    unittest.main()
