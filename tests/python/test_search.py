"""Tests of `kvsim search` on small synthetic traces. Run: python tests/python/test_search.py

Needs KVSIM_BIN or build/kvsim and the modules of plots/requirements.txt; without them one line says
so and nothing is tested.
"""

import errno
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import h5py
import numpy as np
import optuna
from commands_here import run_here

import kvsim
from kvsim.program import find_program
from kvsim.searches import config as configuration
from kvsim import units
from kvsim.searches import space, summary
from kvsim.searches.study import NAME, Study

PROGRAM = find_program()

TEXTS = {"alpha_96_0": (96, 0), "beta_96_0": (96, 10), "gamma_128_1": (128, 1),
         "delta_160_2": (160, 2)}
VARY = {"smooth": "any", "kernel": {"low": 3, "high": 9}, "aggregate": ["max", "mean", "ema"],
        "ema_alpha": {"low": 0.1, "high": 0.9}, "window": {"low": 4, "high": 24}}
STATE = optuna.trial.TrialState


class WithTexts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.traces = Path(folder.name)
        for name, (prompt, seed) in TEXTS.items():
            subprocess.run([PROGRAM, "synth", "-o", cls.traces / f"{name}.h5", "-q",
                            f"--prompt={prompt}", "--steps=8", "--num-layers=2", "--hidden=32",
                            "--head-dim=8", f"--seed={seed}"], check=True)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def document(self, **more):
        traces = {"search": [str(self.traces / "alpha_96_0.h5"), str(self.traces / "beta_96_0.h5")],
                  "report": [str(self.traces / "gamma_128_1.h5"),
                             str(self.traces / "delta_160_2.h5")]}
        return {"base": "snapkv,window=8", "budgets": [0.2, 0.5], "trials": 12, "group": 4,
                "vary": VARY, "traces": traces, "sampler": {"startup": 6}, **more}

    def config(self, **more):
        return configuration.read(self.document(**more))

    def file(self, **more):
        import tomli_w

        path = self.folder / "search.toml"
        path.write_text(tomli_w.dumps(self.document(**more)))
        return path

    def command(self, file, out, *more):
        return subprocess.run([PROGRAM, "search", file, "-o", out, *more], text=True,
                              capture_output=True, check=False,
                              env={**os.environ, "KVSIM_PYTHON": sys.executable})

    def values(self, folder):
        storage_ = optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(folder / "study.journal")))
        study = optuna.load_study(study_name=NAME, storage=storage_)
        return [(one.number, one.state, one.values, one.params, one.user_attrs.get("record"),
                 one.user_attrs.get("measured")) for one in study.get_trials()]


class Spaces(WithTexts):
    def space(self, **vary):
        return space.Space(self.config(vary=vary))

    def drawn(self, vary, base="snapkv,window=8", count=60):
        """Records of random trials, with the parameters that were asked for."""
        found = space.Space(self.config(vary=vary, base=base))
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
        return [(found.suggest(trial), trial.params) for trial in
                (study.ask() for _ in range(count))]

    def test_ranges_are_those_of_the_declarations(self):
        axes = self.space(ema_alpha="any", kernel={"low": 3, "high": 9}, ada_floor="any",
                          window={"low": 0.1, "high": 0.5}, smooth="any", nested="any").axes
        self.assertEqual((axes["ema_alpha"].distribution.low, axes["ema_alpha"].distribution.high),
                         (0.001, 1.0))   # 0 itself is not allowed
        self.assertEqual((axes["ada_floor"].distribution.low, axes["ada_floor"].distribution.high),
                         (0.0, 1.0))
        self.assertEqual(axes["kernel"].distribution.step, 2)   # odd
        self.assertEqual(axes["window"].text(0.5), "0.5")
        self.assertEqual(set(axes["smooth"].distribution.choices), set(json.loads(subprocess.run(
            [PROGRAM, "policies", "smooth", "--json"], capture_output=True, check=True,
            text=True).stdout)["key"]["values"]))
        self.assertEqual(axes["nested"].distribution.choices, ("no", "yes"))

    def test_any_leaves_out_what_only_presets_have_and_what_needs_a_file(self):
        axes = self.space(queries="any", indicator="any", allocate="any").axes
        self.assertNotIn("future", axes["queries"].distribution.choices)
        self.assertNotIn("external", axes["indicator"].distribution.choices)
        self.assertNotIn("duo", axes["allocate"].distribution.choices)
        self.assertIn("joint", axes["allocate"].distribution.choices)

    def test_a_key_is_asked_for_only_where_it_takes_effect(self):
        seen = set()
        for record, params in self.drawn(VARY):
            self.assertEqual("kernel" in params, params["smooth"] != "none" and
                             not params["smooth"].startswith("aws"))
            self.assertEqual("ema_alpha" in params, params["aggregate"] == "ema")
            seen.add((params["smooth"], params["aggregate"]))
            self.assertIn(f"smooth={params['smooth']}", record)
        self.assertGreater(len(seen), 8)

    def test_every_record_without_other_conflicts_is_one_that_the_program_takes(self):
        vary = {**VARY, "smooth": ["none", "avg", "max"], "group": ["max", "mean"],
                "indicator": ["attention", "importance", "key-norm"]}
        records = [record for record, _ in self.drawn(vary, count=40)]
        told = json.loads(subprocess.run(
            [PROGRAM, "inspect", self.traces / "alpha_96_0.h5", "--json",
             *[f"--policy={one}" for one in records]], capture_output=True, text=True,
            check=True).stdout)
        self.assertEqual([one["fault"] for one in told["policies"]], [""] * len(records))

    def test_conditions_are_the_programs_own_for_random_choices_of_all_kinds(self):
        declared = space.Declarations.load()
        stages = [key for key, one in declared.keys.items() if one["type"] == "kind"]
        chance = random.Random(3)
        compared = 0
        for _ in range(60):
            record = chance.choice(["snapkv", "h2o", "keydiff", "layer-defensivekv"])
            stage = chance.choice(stages)
            kind = chance.choice(declared.keys[stage]["values"])
            told = subprocess.run([PROGRAM, "policies", f"{record},{stage}={kind}", "--json"],
                                  capture_output=True, text=True, check=False)
            if told.returncode:
                continue   # a combination that is refused
            rows = json.loads(told.stdout)["preset"]["record"]
            settings = {row["key"]: row["value"] for row in rows}
            self.assertEqual(declared.used(settings), set(settings), f"{record},{stage}={kind}")
            compared += 1
        self.assertGreater(compared, 20)

    def test_a_key_that_the_base_changes_goes_where_it_takes_no_effect(self):
        drawn = self.drawn({"smooth": ["none", "avg"], "window": [4, 8]},
                           base="snapkv,window=8,kernel=5")
        self.assertEqual({record for record, _ in drawn},
                         {f"snapkv,window={window},smooth=none" for window in (4, 8)} |
                         {f"snapkv,window={window},smooth=avg,kernel=5" for window in (4, 8)})

    def test_several_bases_are_a_choice(self):
        records = [record for record, _ in
                   self.drawn({"window": [8, 16]}, ["snapkv", "adakv"], count=12)]
        self.assertEqual({record.split(",")[0] for record in records}, {"snapkv", "adakv"})

    def test_numbers_are_written_as_records_write_them(self):
        self.assertEqual(space.decimal_text(0.00012345678, False), "0.0001235")
        self.assertEqual(space.decimal_text(1.0, True), "1.0")
        self.assertEqual(space.decimal_text(1e-7, False), "0.0000001")


class Files(WithTexts):
    def command(self, file, out, *more):
        return run_here("search", file, "-o", out, *more)

    def refused(self, expected, **more):
        done = self.command(self.file(**more), self.folder / "study")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(expected, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_mistakes_are_one_line_that_says_where_and_what_was_expected(self):
        self.refused('vary: unknown key smoth (did you mean smooth?)', vary={"smoth": "any"})
        self.refused('vary: window: not both ends are declared', vary={"window": "any"})
        self.refused('vary: smooth: found avrg, expected', vary={"smooth": ["avrg"]})
        self.refused('vary: ema_alpha: found 2, expected a number in (0, 1]',
                     vary={"ema_alpha": {"low": 0.1, "high": 2}})
        self.refused('vary: kernel: found 4, expected an odd integer',
                     vary={"kernel": {"low": 4, "high": 9}})
        self.refused('vary: window: found {"low": 9, "high": 3}, expected low < high',
                     vary={"window": {"low": 9, "high": 3}})
        self.refused('unknown key trails = 3', trails=3)
        self.refused('found [[policy]], the table of a sweep', policy=[{"preset": "snapkv"}])
        self.refused('trials: found 0, expected a whole number >= 1', trials=0)
        self.refused('no such preset', base="snopkv")
        self.refused('sampler: kind: found "tpee", expected one of tpe, random, nsga2',
                     sampler={"kind": "tpee"})
        self.refused('objective: budgets: found 0.3, expected some of budgets, 0.2, 0.5',
                     objective={"budgets": [0.3]})
        self.refused('unknown metric', objective={"variable": "stream_eror"})
        self.refused('objective: reference is missing: several variables',
                     objective={"variable": ["stream_error_rms", "output_error_mean"]})
        self.refused('objective: variable: found [], expected the name of a variable, or a list',
                     objective={"variable": []})
        self.refused('several objectives cannot be pruned', objective=[{}, {"budgets": [0.2]}],
                     pruner={"kind": "median"})
        self.refused('found 4, expected an odd integer', start=["snapkv,window=8,kernel=4"])
        self.refused('start: snapkv,window=8,sinks=4: sinks=4 is not varied',
                     start=["snapkv,window=8,sinks=4"])
        with self.assertRaisesRegex(kvsim.UsageError, "no folder that can be written"):
            kvsim.search(self.file(), __file__)

    def test_what_is_not_there_is_bad_data(self):
        for file, expected in ((self.folder / "none.toml", "none.toml: no such file"),
                               (self.file(traces={"search": ["nowhere.h5"]}),
                                "nowhere.h5: no such file")):
            done = self.command(file, self.folder / "study")
            self.assertEqual((done.returncode, done.stderr),
                             (3, f"kvsim: {self.folder / expected}\n"))

    def test_a_file_that_is_no_toml_is_named_with_its_line(self):
        path = self.folder / "broken.toml"
        path.write_text("base = \n")
        done = self.command(path, self.folder / "study")
        self.assertEqual(done.returncode, 2)
        self.assertIn("line 1", done.stderr)


class Searches(WithTexts):
    def test_the_objective_is_the_mean_logarithm_against_the_reference(self):
        found = kvsim.search(self.document(trials=4), self.folder / "study")
        self.assertEqual(found.tried, 4)
        self.assertEqual(found.trials.record[0], "snapkv,window=8")   # the base is the start
        self.assertEqual(found.trials.filter(like="ln ").iloc[0, 0], 0)
        row = found.trials[found.trials.state == "measured"].iloc[-1]
        logs = []
        for name in ("alpha_96_0", "beta_96_0"):
            own = kvsim.replay(self.traces / f"{name}.h5", [row.record, "snapkv,window=8"],
                               [0.2, 0.5])
            error = own.stream_error_rms.values
            logs += [math.log(a / b) for a, b in zip(error[0], error[1])]
        self.assertAlmostEqual(row[[c for c in found.trials if c.startswith("ln ")][0]],
                               sum(logs) / 4, places=5)
        for name in ("candidates.csv", "summary.txt", "figures/history.png"):
            self.assertTrue((self.folder / "study" / name).exists(), name)

    def test_several_variables_are_judged_by_their_geometric_mean(self):
        names = ["stream_error_rms", "stream_perturbation_rms"]
        own = {}
        for variable in [*names, names]:
            objective = {"variable": variable, "reference": "snapkv,window=8"}
            found = kvsim.search(self.document(trials=3, objective=objective),
                                 self.folder / "-".join(variable), report=variable == names)
            title = next(name for name in found.trials if name.startswith("ln "))
            own[title] = list(found.trials[title])
        first, second, both = own.values()
        self.assertNotEqual(first[2], second[2])
        for a, b, c in zip(first, second, both):
            self.assertAlmostEqual(c, (a + b) / 2, places=9)
        self.assertIn("ln geometric mean of stream_error_rms · stream_perturbation_rms / "
                      "snapkv,window=8", own)
        self.assertIn("stream_perturbation_rms relative to snapkv,window=8", found.report)

    def test_a_search_finds_what_a_grid_finds(self):
        vary = {"smooth": ["none", "avg", "max"], "window": [4, 8, 16], "group": ["max", "mean"]}
        found = kvsim.search(self.document(vary=vary, trials=60, group=10), self.folder / "study")
        grid = [f"snapkv,smooth={s},window={w},group={g}" for s in vary["smooth"]
                for w in vary["window"] for g in vary["group"]]
        total = np.zeros(len(grid))
        for name in ("alpha_96_0", "beta_96_0"):
            results = kvsim.replay(self.traces / f"{name}.h5", grid, [0.2, 0.5])
            total += np.log(results.stream_error_rms.values).mean(1)
        best = space.settings_of(str(results.policy.values[total.argmin()]))
        self.assertEqual(space.settings_of(found.best[0]), best)
        self.assertEqual(found.tried, 60)
        self.assertIn("the same record as an earlier one", found.summary)

    def test_an_interrupted_search_goes_on_to_the_same_study(self):
        whole = self.folder / "whole"
        told = self.command(self.file(), whole, "--progress", "json")
        self.assertEqual(told.returncode, 0, told.stderr)
        shares = [json.loads(line)["progress"] for line in told.stderr.splitlines()]
        self.assertEqual(shares, [1 / 3, 2 / 3, 1])   # 12 candidates in groups of 4
        cut = self.folder / "cut"
        for lines in (6, 20, 60, 100):   # while it begins, asks, measures, tells
            process = subprocess.Popen(
                [PROGRAM, "search", self.file(), "-o", cut, "-q"], stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, env={**os.environ, "KVSIM_PYTHON": sys.executable})
            journal = cut / "study.journal"
            while not journal.exists() or journal.read_bytes().count(b"\n") < lines:
                self.assertIsNone(process.poll())
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.wait()
        with (cut / "study.journal").open("ab") as file:
            file.write(b'{"op_code": 5, "work')   # as a write that was cut off would leave it
        done = self.command(self.file(), cut)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.values(cut), self.values(whole))
        self.assertEqual(*((one / "units.jsonl").read_bytes() for one in (cut, whole)))
        again = self.command(self.file(), cut)
        self.assertEqual(again.stderr, "")   # nothing was left to do
        self.assertEqual(self.values(cut), self.values(whole))

    def test_a_line_that_cannot_be_written_leaves_nothing_and_ends_the_journal(self):
        config = self.config()
        whole, failed = self.folder / "whole", self.folder / "failed"
        Study(config, whole).run(4)
        sync, calls = os.fsync, []

        def fails_once(nth):
            def failing(file):
                calls.append(file)
                if len(calls) == nth:
                    raise OSError(errno.ENOSPC, "No space left on device")
                sync(file)
            return failing

        for nth in (1, 2, 3, 5, 8, 13):   # of the study, the starts, the references, the candidates
            calls.clear()
            with unittest.mock.patch.object(units.os, "fsync", fails_once(nth)), \
                    self.assertRaisesRegex(OSError, "No space left"):
                Study(config, failed).run(4)
            lines = (failed / "study.journal").read_bytes()
            self.assertTrue(lines == b"" or lines.endswith(b"\n"))
        Study(config, failed).run(4)
        self.assertEqual(self.values(failed), self.values(whole))

    def test_two_processes_share_a_study(self):
        out = self.folder / "study"
        file = self.file(trials=24)
        both = [subprocess.Popen([PROGRAM, "search", file, "-o", out, "-q"], text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env={**os.environ, "KVSIM_PYTHON": sys.executable})
                for _ in range(2)]
        told = [one.communicate() for one in both]
        self.assertEqual([one.returncode for one in both], [0, 0], told)
        trials = self.values(out)
        self.assertEqual(len(trials), 24)
        self.assertTrue(all(one[1] in (STATE.COMPLETE, STATE.PRUNED) for one in trials))
        workers = {one.user_attrs["worker"] for one in Study(
            configuration.read(file), out).trials()}
        self.assertEqual(len(workers), 2)

    def test_refused_combinations_are_infeasible_candidates(self):
        vary = {"indicator": ["attention", "output-change-mean"], "order": ["asg", "sag"]}
        found = kvsim.search(self.document(vary=vary, trials=16, sampler={"kind": "random"}),
                             self.folder / "study")
        bad = found.trials[found.trials.state == "infeasible"]
        self.assertGreater(len(bad), 0)
        for _, row in bad.iterrows():
            self.assertEqual((row.indicator, row.order), ("output-change-mean", "sag"))
            self.assertIn("aggregates first", row.reason)
        self.assertEqual(len(found.trials[found.trials.state == "measured"]) + len(bad), 16)

    def test_the_pruner_gives_up_after_the_first_text_and_no_best_one(self):
        more = {"trials": 40, "group": 8, "pruner": {"kind": "median", "startup": 8}}
        found = kvsim.search(self.document(**more), self.folder / "study")
        given_up = found.trials[found.trials.state == "given up"]
        self.assertGreater(len(given_up), 4)
        study = Study(self.config(**more), self.folder / "study")
        for number in given_up.candidate:
            one = study.trials()[number]
            self.assertEqual(len(one.user_attrs["measured"]), 1)   # of two texts
            self.assertEqual(list(one.intermediate_values), [0])
        self.assertIn("given up on the way", found.summary)

    def test_a_first_look_at_some_layers_is_against_the_reference_there(self):
        more = {"trials": 8, "pruner": {"layers": [0], "startup": 2}}
        kvsim.search(self.document(**more), self.folder / "study")
        study = Study(self.config(**more), self.folder / "study")
        base = study.trials()[0]
        self.assertEqual(base.intermediate_values, {0: 0.0, 1: 0.0, 2: 0.0})
        own = kvsim.replay(self.traces / "alpha_96_0.h5", ["snapkv,window=8"], [0.2, 0.5],
                           layers=[0])
        told = next(value for key, value in study.reference.items() if key.endswith(":0"))
        self.assertEqual(told["snapkv,window=8"]["stream_error_rms"],
                         list(own.stream_error_rms.values[0]))

    def test_several_objectives_end_with_a_front(self):
        objective = [{"budgets": [0.2], "reference": "snapkv"},
                     {"variable": "bytes_ragged", "direction": "minimize"}]
        vary = {**VARY, "skip_layers": ["none", "0", "1"]}
        for kind in ("nsga2", "tpe"):
            found = kvsim.search(self.document(vary=vary, objective=objective, trials=24, group=6,
                                               sampler={"kind": kind, "startup": 6}),
                                 self.folder / kind)
            self.assertGreater(len(found.best), 1)
            self.assertTrue((self.folder / kind / "figures" / "history.png").exists())

    def test_another_search_does_not_go_on_with_a_study(self):
        kvsim.search(self.document(trials=2), self.folder / "study")
        with self.assertRaisesRegex(kvsim.UsageError, r"made with budgets \['0.2', '0.5'\]: found \['0.3'\]; expected"):
            kvsim.search(self.document(budgets=[0.3]), self.folder / "study")
        found = kvsim.search(self.document(trials=4), self.folder / "study")   # more is allowed
        self.assertEqual(found.tried, 4)


class Honesty(WithTexts):
    def aside(self, **changed):
        one = configuration.Text("x.h5", "d1", "m", 96, 104, "alpha", 0, 96)
        return configuration.Text(**{**asdict(one), "file": "y.h5", "digest": "d2", **changed})

    def test_texts_set_aside_differ_in_kind_seed_and_length(self):
        one = configuration.Text("x.h5", "d1", "m", 96, 104, "alpha", 0, 96)
        configuration.check_apart([one], [self.aside(kind="b", seed=1, length=128)], configuration.APART)
        for changed, what in (({"seed": 1, "length": 128}, "kind"),
                              ({"kind": "b", "length": 128}, "seed"),
                              ({"kind": "b", "seed": 1}, "length")):
            with self.assertRaisesRegex(kvsim.UsageError, f"y.h5: set aside, but {what} is that of "
                                                          "x.h5"):
                configuration.check_apart([one], [self.aside(**changed)], configuration.APART)
        with self.assertRaisesRegex(kvsim.UsageError, "its content is that of"):
            configuration.check_apart([one], [self.aside(digest="d1")], ())
        with self.assertRaisesRegex(kvsim.UsageError, "y.h5: kind of the text unknown"):
            configuration.check_apart([one], [self.aside(kind=None, seed=1, length=128)],
                              configuration.APART)

    def test_a_copy_of_a_searched_text_under_another_name_is_refused(self):
        copy = self.folder / "other_999_9.h5"
        copy.write_bytes((self.traces / "alpha_96_0.h5").read_bytes())
        traces = self.document()["traces"] | {"report": [str(copy)]}
        with self.assertRaisesRegex(kvsim.UsageError, "its content is that of"):
            kvsim.search(self.document(traces=traces), self.folder / "study")

    def test_both_lists_are_recorded_with_the_digests_of_their_content(self):
        kvsim.search(self.document(trials=2), self.folder / "study")
        told = Study(self.config(), self.folder / "study").attributes
        self.assertEqual([one["kind"] for one in told["searched"]], ["alpha", "beta"])
        self.assertEqual([(one["kind"], one["seed"], one["length"]) for one in told["set_aside"]],
                         [("gamma", 1, 128), ("delta", 2, 160)])
        digest = json.loads(subprocess.run(
            [PROGRAM, "inspect", "--json", self.traces / "delta_160_2.h5"], capture_output=True,
            check=True).stdout)["digest"]
        self.assertEqual(told["set_aside"][1]["digest"], digest)
        self.assertNotIn("opened", told)

    def test_the_report_measures_texts_that_the_search_left_alone_and_tells_when(self):
        first = kvsim.search(self.document(beside=["knorm"]), self.folder / "study", report=True)
        self.assertIn("opened for this report, for the first time", first.report)
        self.assertIn("12 candidates tried", first.report)
        self.assertIn("found: ", first.report)
        second = self.command(self.file(beside=["knorm"], trials=16), self.folder / "study",
                              "--report")
        self.assertEqual(second.returncode, 0, second.stderr)
        self.assertIn("had been opened before, 1 time", second.stdout)
        self.assertIn("after 12 candidates", second.stdout)
        rows = (self.folder / "study" / "report.csv").read_text().splitlines()
        own = kvsim.replay(self.traces / "gamma_128_1.h5", ["knorm"], [0.2])
        error = float(own.stream_error_rms.values[0, 0])
        told = next(row.split(",") for row in rows if row.startswith("gamma_128_1,knorm,0.2"))
        self.assertAlmostEqual(float(told[4]), error, places=6)
        self.assertTrue(
            (self.folder / "study" / "figures" / "report_stream_error_rms.png").exists())
        with h5py.File(self.folder / "study" / "report" / "delta_160_2.nc") as file:
            self.assertIn("stream_error_rms", file)

    def test_opened_texts_cannot_be_replaced(self):
        kvsim.search(self.document(trials=2), self.folder / "study", report=True)
        traces = self.document()["traces"]
        traces["report"] = traces["report"][:1]
        with self.assertRaisesRegex(kvsim.UsageError, "were opened and are recorded"):
            kvsim.search(self.document(traces=traces), self.folder / "study", report=True)

    def test_a_report_without_texts_set_aside_is_refused(self):
        traces = {"search": self.document()["traces"]["search"]}
        with self.assertRaisesRegex(kvsim.UsageError, "report is missing"):
            kvsim.search(self.document(traces=traces, trials=2), self.folder / "study",
                         report=True)


class Sample(unittest.TestCase):
    def test_the_search_of_the_documentation_runs_on_the_sample(self):
        with tempfile.TemporaryDirectory() as folder:
            config = configuration.read(ROOT / "data" / "searches" / "sample.toml")
            study = Study(config, folder)
            study.run(8)
            self.assertIn("8 candidates tried", summary.counts_text(study))
            self.assertTrue(summary.MOST > 0 and study.best())


if __name__ == "__main__":
    unittest.main()
