"""Tests of what commands written in Python say of their options. Run: python tests/python/test_tool.py"""

import contextlib
import io
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from kvsim.commands import COMMANDS
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


class Reference(unittest.TestCase):
    def test_the_page_says_what_the_docstrings_say(self):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "reference.py", "--check"],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)


if __name__ == "__main__":
    unittest.main()
