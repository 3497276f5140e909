"""Tests of functions in files as policies, and of progress. Run: python tests/python/test_functions.py

Needs KVSIM_BIN or build/kvsim and the modules of plots/requirements.txt; without them one line says
so and nothing is tested.
"""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import numpy as np

import kvsim
import kvsim.program

PROGRAM = kvsim.program.find_program()

MINE = '''"""Policies of a user."""
import time
import numpy as np
import beside


def newest(layer):
    print("a line of the user's")
    return np.tile(layer.positions, (len(layer.keys), 1))


def scaled(layer):
    return beside.factor * newest(layer)


def broken(layer):
    return 1 / 0


def narrow(layer):
    return np.zeros((1, 2, 3))


def undefined(layer):
    scores = newest(layer).astype(float)
    scores[0, 7] = np.nan
    return scores


def words(layer):
    return newest(layer).astype(str)


def slow(layer):
    open("started", "w").close()
    time.sleep(600)


number = 5
'''


class WithFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "mine.py").write_text(MINE)
        (self.folder / "beside.py").write_text("factor = 2\n")
        for number, name in enumerate(("one", "two")):
            kvsim.synth(self.folder / f"{name}.h5", prompt=64, steps=8, num_layers=2, seed=number)

    def environment(self):
        return {**os.environ, "KVSIM_PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1",
                "TMPDIR": str(self.folder)}

    def kvsim(self, *words, code=0):
        done = subprocess.run([PROGRAM, *words], cwd=self.folder, capture_output=True, text=True,
                              env=self.environment())
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def replay(self, *policies, trace="one.h5", code=0):
        return self.kvsim("replay", trace, *[f"--policy={one}" for one in policies], "--budget",
                          "0.25", "--save-keep", "-o", "out.nc", "--overwrite", code=code)


class Results(WithFiles):
    def test_the_summary_is_a_table_for_a_paper(self):
        results = kvsim.replay(self.folder / "one.h5", "snapkv,window=4", [0.25, 0.5])
        text = results.kvsim.summary.to_latex(caption="Losses & more", label="tab:losses")
        lines = text.splitlines()
        self.assertIn("\\caption{Losses \\& more.}", lines)
        self.assertIn("\\label{tab:losses}", lines)
        rows = [line for line in lines if line.startswith("snapkv")]
        self.assertEqual([row.split(" & ")[:2] for row in rows],
                         [["snapkv,window=4", "0.25"], ["snapkv,window=4", "0.5"]])
        error = float(results.stream_error_rms.values[0, 0])
        self.assertEqual(rows[0].split(" & ")[2], f"{error:.3f}")
        self.assertEqual({line.count(" & ") for line in lines if line.endswith("\\\\")},
                         {rows[0].count(" & ")})
        results.kvsim.summary.round(2).to_latex(self.folder / "table.tex")
        self.assertTrue((self.folder / "table.tex").read_text().startswith("\\begin{tabular}"))

    def test_budgets_are_found_however_they_are_typed(self):
        self.kvsim("replay", "one.h5", "--policy=snapkv,window=4", "--budget", ".25,50%,0.50",
                   "--save-keep", "-o", "out.nc")
        results = kvsim.open_results(self.folder / "out.nc")
        self.assertEqual(results.budget_label.values.tolist(), ["0.25", "0.5"])
        told = {typed: self.kvsim("explain", "out.nc", "--budget", typed, "--json").stdout
                for typed in ("0.25", ".25", "25%", "0.250")}
        self.assertEqual(len(set(told.values())), 1)
        self.assertEqual(self.kvsim("explain", "out.nc", "--policy", "snapkv,window=04", "--budget",
                                    "25%", "--json").stdout, told["0.25"])
        self.kvsim("explain", "out.nc", "--budget", "30%", code=3)

    def test_inspect_says_what_results_hold(self):
        self.kvsim("replay", "one.h5", "--policy=snapkv,window=4", "--budget", "0.25", "-o", "out.nc")
        said = self.kvsim("inspect", "out.nc").stdout
        for line in ("program        kvsim ", "trace          one.h5", "budgets        0.25",
                     "policies\n  snapkv,window=4", "stream_error_rms"):
            self.assertIn(line, said)
        told = json.loads(self.kvsim("inspect", "out.nc", "--json").stdout)
        self.assertEqual((told["budgets"], told["policies"]), (["0.25"], ["snapkv,window=4"]))
        self.assertIn({"name": "budget", "dims": ["budget"], "units": "1",
                       "long_name": "budget as a share of the prompt"}, told["variables"])


class CommandLine(WithFiles):
    def test_a_function_stands_where_a_preset_does(self):
        self.replay("streaming,sinks=0", "python:mine.py:newest", "python:mine.py:scaled,sinks=4",
                    "streaming,sinks=4")
        results = kvsim.open_results(self.folder / "out.nc")
        self.assertEqual(list(results.policy.values)[1:3],
                         ["python:mine.py:newest", "python:mine.py:scaled,sinks=4"])
        kept = results.kept_mask.values
        np.testing.assert_array_equal(kept[0], kept[1])
        np.testing.assert_array_equal(kept[2], kept[3])
        told = results.kvsim.records["python:mine.py:newest"]["function"]
        self.assertEqual(told["source"], MINE[MINE.index("def newest"):MINE.index("def scaled")]
                         .rstrip() + "\n")
        self.assertEqual((told["name"], told["file"]), ("newest", "mine.py"))
        self.assertEqual({one.name for one in self.folder.glob("*")} - {"__pycache__"},
                         {"mine.py", "beside.py", "one.h5", "two.h5", "out.nc"})

    def test_what_the_function_prints_is_not_among_the_results(self):
        done = self.kvsim("replay", "one.h5", "--policy", "python:mine.py:newest", "--budget",
                          "0.25", "--json", "-o", "out.nc")
        self.assertTrue(json.loads(done.stdout))
        self.assertIn("a line of the user's", done.stderr)

    def test_mistakes_are_one_line_with_their_code(self):
        for function, code, line in (
            ("none.py:score", 2, "python:none.py:score: no such file: none.py, expected"),
            ("mine.py:missing", 2, "mine.py has no function missing, expected one of newest, "),
            ("mine.py:number", 2, "mine.py has no function number"),
            ("mine.py:", 2, "no function is named"),
            ("mine.py:newest,window=x", 2, "window"),
            ("mine.py:broken", 1, "mine.py:17: broken(layer 0): ZeroDivisionError"),
            ("mine.py:narrow", 3, "narrow(layer 0): wrong shape: found [1, 2, 3], expected ["),
            ("mine.py:undefined", 3, "undefined(layer 0): NaN at [0, 7], expected finite"),
            ("mine.py:words", 3, "words(layer 0): not numbers"),
            ("syntax.py:score", 2, "syntax.py:2: SyntaxError"),
            ("raises.py:score", 1, "raises.py:1: ValueError: no"),
        ):
            (self.folder / "syntax.py").write_text("a = 1\ndef score(:\n")
            (self.folder / "raises.py").write_text("raise ValueError('no')\n")
            said = self.replay(f"python:{function}", code=code).stderr.splitlines()
            said = [one for one in said if one != "a line of the user's"]
            self.assertEqual(len(said), 1, said)
            self.assertIn(line, said[0])
            self.assertTrue(said[0].startswith("kvsim: "))
            self.assertFalse((self.folder / "out.nc").exists())

    def test_a_function_that_says_nothing_is_without_effect(self):
        def constant(layer):
            return np.ones((len(layer.keys), len(layer.positions)))

        for changes in ({}, {"sinks": 4}, {"allocate": "ada"}):
            results = kvsim.replay(self.folder / "one.h5", ["knorm", kvsim.Policy(constant, **changes)],
                                   [0.25, 0.5])
            said = [line for line in results.attrs["without_effect"].splitlines() if "constant" in line]
            self.assertEqual(len(said), 1, changes)
            self.assertRegex(said[0], "^python:constant.* at 0.25, 0.5: no score chooses, all are equal$")
            self.assertNotIn("knorm", results.attrs["without_effect"])

    def test_errors_name_the_users_own_line(self):
        def nothing(layer):
            pass

        def two(layer, more):
            return more

        def leaves(layer):
            sys.exit(3)

        class Scorer:
            def __call__(self, layer):
                return np.linalg.inv(layer.keys[0][:, :3].astype("float32"))

        def line_of(function):
            return f"test_functions.py:{function.__code__.co_firstlineno}"

        for policy, place, reason in (
                (nothing, line_of(nothing), "wrong shape: found a NoneType"),
                (two, line_of(two), "TypeError: .*missing 1 required positional argument"),
                (functools.partial(two, more=1), line_of(two), r"wrong shape: found \[\]"),
                (leaves, f"test_functions.py:{leaves.__code__.co_firstlineno + 1}", "SystemExit: 3"),
                (Scorer(), f"test_functions.py:{Scorer.__call__.__code__.co_firstlineno + 1}", "LinAlgError")):
            with self.assertRaisesRegex(kvsim.Error, f"^{place}: mine\\(layer 0\\): {reason}"):
                kvsim.replay(self.folder / "one.h5", kvsim.Policy(policy, name="mine"), 0.5)
        with self.assertRaisesRegex(kvsim.UsageError, r"Scorer: a class, .*: Scorer\(\.\.\.\)"):
            kvsim.replay(self.folder / "one.h5", Scorer, 0.5)

    def test_commands_that_call_no_function_refuse_it(self):
        for command in (["inspect", "one.h5"], ["attend", "one.h5", "--budget", "0.25"]):
            said = self.kvsim(*command, "--policy", "python:mine.py:newest", code=2).stderr
            self.assertIn("--policy: this command calls no function: found python:mine.py:newest",
                          said)
            self.assertEqual(len(said.splitlines()), 1)

    def test_results_are_explained_and_explored_while_the_function_is_what_it_was(self):
        self.replay("python:mine.py:newest")
        refused = self.kvsim("explain", "out.nc", code=2).stderr   # files may come from anywhere
        self.assertIn("is run only when it is named (--policy python:mine.py:newest)", refused)
        named = "--policy=python:mine.py:newest"
        found = json.loads(self.kvsim("explain", "out.nc", "--json", named).stdout)
        self.assertEqual(found["policy"], "python:mine.py:newest")
        self.assertTrue(found["lost"])
        self.assertTrue(all(one["score"] == one["position"] for one in found["lost"]))
        with contextlib.chdir(self.folder):   # where mine.py is
            explained = kvsim.explain("out.nc", "one.h5", policy="python:mine.py:newest")
        self.assertEqual(explained.policy, "python:mine.py:newest")
        self.kvsim("report", "out.nc", "-o", "page.html")
        changed = MINE.replace("np.tile(layer.positions", "np.tile(-layer.positions")
        (self.folder / "mine.py").write_text(changed)
        line = self.kvsim("explain", "out.nc", named, code=3).stderr
        self.assertIn("the function is not what it was", line)

    def test_ctrl_c_ends_the_function_too(self):
        child = subprocess.Popen(
            [PROGRAM, "replay", "one.h5", "--policy", "python:mine.py:slow", "-o", "out.nc"],
            cwd=self.folder, stderr=subprocess.PIPE, text=True, env=self.environment(),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        while not (self.folder / "started").exists():
            self.assertIsNone(child.poll(), "ended by itself")
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=60)[1]   # returns when nobody holds standard error
        self.assertEqual(child.returncode, 130)
        self.assertNotIn("Traceback", said)
        self.assertEqual([one.name for one in self.folder.glob(".*")], [])


class Sweeps(WithFiles):
    def sweep_text(self):
        (self.folder / "sweep.toml").write_text(
            'traces = ["one.h5", "two.h5"]\nbudgets = [0.25]\n[[policy]]\n'
            'preset = ["python:mine.py:newest", "streaming"]\nsinks = [0, 4]\n')

    def sweep(self, *words):
        self.sweep_text()
        return self.kvsim("sweep", "sweep.toml", "-o", "out", "--allow", "mine.py", *words)

    def test_a_sweep_file_runs_nothing_that_was_not_named(self):
        self.sweep_text()
        for words in ((), ("--allow", "beside.py"), ("--plan",)):
            said = self.kvsim("sweep", "sweep.toml", "-o", "out", *words, code=2)
            self.assertIn("--allow mine.py", said.stderr)
            self.assertFalse((self.folder / "out").exists())

    def test_a_sweep_file_may_name_functions(self):
        plan = self.sweep("--plan").stdout
        self.assertIn("python:mine.py:newest,sinks=4", plan)
        self.assertFalse((self.folder / "out").exists())
        said = self.sweep().stdout
        self.assertIn("python:mine.py:newest", said)
        self.assertIn("intervals over 2 traces", said)
        again = self.sweep()
        self.assertEqual(again.stderr.count("is there already"), 2)
        self.assertEqual(again.stdout, said)
        for name in ("one", "two"):
            results = kvsim.open_results(self.folder / "out" / f"{name}.nc")
            self.assertEqual(list(results.policy.values),
                             ["python:mine.py:newest", "python:mine.py:newest,sinks=4",
                              "streaming,sinks=0", "streaming"])
            values = results.retained_importance.values
            np.testing.assert_array_equal(values[:2], values[2:])

    def test_a_sweep_in_python_takes_functions(self):
        def newest(layer):
            return np.tile(layer.positions, (len(layer.keys), 1))

        grid = {"budgets": [16], "policy": [{"preset": [newest, "streaming"], "sinks": [0, 4]}]}
        found = kvsim.sweep(grid, self.folder / "out",
                            traces=[self.folder / "one.h5", self.folder / "two.h5"])
        self.assertEqual(len(found), 2)
        for results in found:
            self.assertEqual(list(results.policy.values)[:2],
                             ["python:newest", "python:newest,sinks=4"])
            self.assertIn("function", results.kvsim.records["python:newest"])
            values = results.retained_importance.values
            np.testing.assert_array_equal(values[:2], values[2:])


class Progress(WithFiles):
    def test_it_is_told_as_json_much_finer_than_in_lines(self):
        done = self.kvsim("replay", str(kvsim.sample()), "--progress", "json", "-q", "--threads",
                          "1", "--budget", "0.05:0.95:0.05", "-o", "out.nc")
        told = [json.loads(one) for one in done.stderr.splitlines()]
        shares = [one["progress"] for one in told]
        self.assertGreater(len(shares), 2)
        self.assertEqual(shares, sorted(shares))
        self.assertTrue(all(0 <= one <= 1 for one in shares))
        self.assertIn("layer", told[0]["what"])
        refused = self.kvsim("replay", "one.h5", "--progress", "xml", "-o", "x.nc", code=2)
        self.assertIn("--progress: unknown value: found xml", refused.stderr)

    def test_the_bar_of_python_follows_it(self):
        class Shown(kvsim.program.Progress):
            shares = []

            def show(self, share, what, part=""):
                self.shares.append(share)

        plain, kvsim.program.Progress = kvsim.program.Progress, Shown
        try:
            kvsim.replay(kvsim.sample(), budgets="0.05:0.95:0.05", threads=1, progress=True)
        finally:
            kvsim.program.Progress = plain
        self.assertGreater(len(set(Shown.shares)), 2)


if __name__ == "__main__":
    unittest.main()
