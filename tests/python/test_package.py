"""Tests of the Python package on the sample trace. Run: python tests/python/test_package.py

Needs KVSIM_BIN or build/kvsim and the modules of plots/requirements.txt; without them one line says
so and nothing is tested.
"""

import ast
import inspect
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "plots")]

import numpy as np
import xarray

import loop_file
import study_costs
import kvsim
import kvsim.results
from kvsim.budgets import budget_text
from kvsim.program import find_program

PROGRAM = find_program()

SAMPLE = kvsim.sample()
LAYERS = [0, 15]


def snapkv(layer):
    """SnapKV's scores as its preset computes them: mean attention of the window, pooled."""
    mean = layer.attention(last=32).astype(np.float64).mean(axis=1)[:, :-32]
    pooled = np.stack([np.convolve(row, np.ones(7), "same") for row in mean]) / 7
    pooled = np.pad(pooled, ((0, 0), (0, 32)))   # the window itself is safe
    return pooled.reshape(len(layer.keys), layer.group_size, -1).mean(1)


def newest(layer):
    return np.tile(layer.positions, (len(layer.keys), 1))


class WithFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class Replay(WithFolder):
    @classmethod
    def setUpClass(cls):
        cls.results = kvsim.replay(SAMPLE, ["snapkv", "random"], [0.2, 128], layers=LAYERS,
                                   save_keep=True)

    def test_the_dataset_is_what_the_command_writes(self):
        target = self.folder / "command.nc"
        subprocess.run([PROGRAM, "replay", SAMPLE, "--policy", "snapkv", "--policy", "random",
                        "--budget", "0.2,128", "--layers", "0,15", "--save-keep", "-q", "-o",
                        target], check=True)
        with xarray.open_dataset(target, engine="h5netcdf", decode_times=False) as written:
            xarray.testing.assert_equal(self.results, written)

    def test_the_summary_has_the_numbers_that_the_command_prints(self):
        printed = subprocess.run(
            [PROGRAM, "replay", SAMPLE, "--policy", "snapkv", "--budget", "0.2", "--layers", "0,15",
             "-o", self.folder / "x.nc"], check=True, capture_output=True, text=True)
        row = next(line for line in printed.stdout.splitlines() if line.startswith("snapkv"))
        own = self.results.kvsim.summary.loc[("snapkv", "0.2")]
        shown = [f"{own['stream', 'error']:.3f}",
                 f"{own['retained importance', 'mean']:.3f}",
                 f"{own['retained importance', 'worst']:.3f}",
                 f"{own['retained importance', 'outliers']:.0f}",
                 f"{own['output error', 'mean']:.3f}", f"{own['output error', 'worst']:.3f}",
                 f"{own['residual error', 'worst']:.3f}",
                 f"{own['', 'smaller']:.1f}x"]
        self.assertEqual(re.sub("[*~]", "", row).split(), ["snapkv", "0.2", *shown])

    def test_a_page_is_written_with_the_texts_of_the_trace(self):
        page = self.results.kvsim.report(self.folder / "page.html", title="Two policies")
        text = page.read_text(encoding="utf-8")
        self.assertIn("<title>Two policies", text)
        self.assertGreater(len(text), 100_000)
        with self.assertRaises(kvsim.UsageError):   # an existing page is not replaced unasked
            kvsim.report(self.results, page)

    def test_losses_of_a_closed_loop_stand_beside_the_results_on_page_and_figures(self):
        results = self.results.sel(budget=[self.results.budget.values[0]])
        losses = np.full((1, results.sizes["step"]), 0.25)
        path = loop_file.write(
            self.folder / "loop.nc", {"snapkv": losses, "random": 2 * losses}, results.step.values,
            results.trace_digest, trace=results.trace, budgets=(0.2,))
        results.kvsim.save(self.folder / "kept.nc")
        loop = kvsim.open_results(path)
        summary = loop.kvsim.summary["KL divergence", "mean"]
        self.assertEqual(summary.round(6).tolist(), [0.25, 0.5])
        in_memory = kvsim.report([results, loop], self.folder / "memory.html")
        subprocess.run([PROGRAM, "report", "kept.nc", "loop.nc", "-o", "files.html", "--trace",
                        SAMPLE], cwd=self.folder, check=True, capture_output=True)
        for page in (in_memory, self.folder / "files.html"):
            found = re.search(r'id="content">(.*?)</script>', page.read_text("utf-8"), re.S)
            first = json.loads(found.group(1))["verdict"]["measures"][0]
            self.assertEqual((first["id"], first["values"]),
                             ("kl_divergence_mean", [[0.25], [0.5]]))
        self.assertTrue(kvsim.plot([results, loop], only="budget"))
        with self.assertRaisesRegex(kvsim.DataError, "^the losses of sample.h5: losses .* alone"):
            kvsim.plot(loop)
        loop.kvsim.save(self.folder / "again.nc")
        xarray.testing.assert_identical(kvsim.open_results(self.folder / "again.nc"), loop)

    def test_a_notebook_shows_the_summary_of_results_and_other_datasets_as_ever(self):
        html = self.results.kvsim._repr_html_()
        self.assertIn("retained importance", html)
        self.assertIn("snapkv", html)
        self.assertFalse(kvsim.results.is_results(xarray.Dataset()))

    def test_a_part_of_the_results_is_drawn_and_written_like_the_whole(self):
        part = self.results.sel(policy=["snapkv"])
        figures = kvsim.plot(part, only="budget")
        self.assertTrue(figures and all(one.read_bytes()[:4] == b"\x89PNG" for one in figures))
        self.assertTrue(hasattr(figures, "_ipython_display_"), "a notebook shows them")
        part.kvsim.save(self.folder / "part.nc")
        xarray.testing.assert_equal(kvsim.open_results(self.folder / "part.nc"), part)
        self.assertIn("budget", kvsim.figure_names())

    def test_explain_finds_its_trace_and_the_worst_step(self):
        found = self.results.kvsim.explain(policy="snapkv", top=5)
        self.assertEqual(len(found.lost), 5)
        # The budget and the step of the largest stream error, in its worst layer.
        at = self.results.stream_error.sel(policy="snapkv").argmax(...)
        self.assertEqual(found.step, int(self.results.step[at["step"]]))
        worst = self.results.retained_importance.sel(policy="snapkv").isel(at).min()
        self.assertAlmostEqual(found.retained_importance, float(worst), places=4)
        self.assertIn("text", found.lost.columns)
        self.assertTrue(len(found.plot()) > 0)

    def test_results_of_unknown_traces_ask_for_the_trace(self):
        strange = self.results.assign_attrs(trace_path="/nowhere/t.h5")
        with self.assertRaisesRegex(kvsim.UsageError, "trace="):
            kvsim.explain(strange)
        with self.assertRaisesRegex(kvsim.DataError, "not results of kvsim"):
            kvsim.plot(xarray.Dataset())
        with self.assertRaisesRegex(kvsim.DataError, "not the trace of these results"):
            kvsim.explain(self.results.assign_attrs(trace_digest="xxh3-128:0"))
        with self.assertRaisesRegex(kvsim.UsageError, "policies: found 3, expected a record"):
            kvsim.replay(SAMPLE, 3)

    def test_results_find_their_trace_from_any_folder(self):
        made = self.folder / "made"
        (made / "traces").mkdir(parents=True)
        (made / "results").mkdir()
        trace = made / "traces" / "own.h5"
        kvsim.synth(trace, prompt=64, steps=8)
        target = made / "results" / "kept.nc"
        kvsim.replay(trace, "snapkv,window=8", 0.3, save_keep=True, out=target)
        with xarray.open_dataset(target, engine="h5netcdf", decode_times=False) as written:
            self.assertEqual(written.attrs["trace_path"], "../traces/own.h5")
        for folder in (made, self.folder / "moved"):
            made.rename(folder)
            opened = kvsim.open_results(folder / "results" / "kept.nc")
            self.assertTrue(len(opened.kvsim.explain().lost) > 0)
            said = subprocess.run([PROGRAM, "explain", folder / "results" / "kept.nc"],
                                  capture_output=True, text=True, cwd="/")
            self.assertEqual(said.returncode, 0, said.stderr)
            opened.kvsim.save(folder / "own.nc")   # the path is another from there
            self.assertEqual(kvsim.open_results(folder / "own.nc").attrs["trace_path"],
                             str(folder.resolve() / "traces" / "own.h5"))
            said = subprocess.run([PROGRAM, "report", folder / "own.nc", "-o",
                                   folder / f"{folder.name}.html"], capture_output=True, text=True, cwd="/")
            self.assertEqual(said.returncode, 0, said.stderr)
            self.assertNotIn("is not here", said.stderr)


class OwnPolicies(WithFolder):
    def kept(self, *policies, budget=0.2, **options):
        results = kvsim.replay(SAMPLE, policies, budget, layers=LAYERS, save_keep=True, **options)
        return results, results.kept_mask.isel(budget=0).values

    def test_a_function_selects_what_the_preset_of_the_same_scores_selects(self):
        # The preset protects its window; pooling in double precision breaks no ties otherwise.
        results, kept = self.kept("snapkv,smooth=avg,kernel=7",
                                  kvsim.Policy(snapkv, recent=32))
        differ = (kept[0] != kept[1]).sum()
        self.assertLessEqual(differ, 4)   # float32 attention: neighbours at the threshold may swap
        self.assertEqual(list(results.policy.values)[1], "python:snapkv,recent=32")

    def test_name_and_source_stand_in_the_record_of_the_run(self):
        results, _ = self.kept(newest)
        told = results.kvsim.records["python:newest"]["function"]
        self.assertEqual(told["source"], inspect.getsource(newest))
        self.assertEqual((told["name"], told["file"]), ("newest", "test_package.py"))

    def test_other_stages_work_on_a_function(self):
        results, kept = self.kept("streaming,sinks=0", newest, kvsim.Policy(newest, sinks=4),
                                  kvsim.Policy(newest, whitelist="defense"))
        np.testing.assert_array_equal(kept[0], kept[1])
        self.assertTrue((kept[2][..., :4] == 1).all())
        rates = results.keep_rate.sel(span="defense").isel(budget=0).values
        self.assertTrue((rates[3] == 1).all() and (rates[1] == 0).all())

    def test_scores_per_query_head_keep_a_set_per_query_head(self):
        def wide(layer):
            return np.tile(layer.positions, (len(layer.queries), 1))

        results = kvsim.replay(SAMPLE, kvsim.Policy(wide, granularity="query"), 0.2, layers=[0])
        self.assertIn("kept_query", results)
        with self.assertRaisesRegex(kvsim.DataError, r"\[9, 431\].*\[3, 431\]"):
            kvsim.replay(SAMPLE, wide, 0.2, layers=[0])

    def test_a_sweep_takes_a_dictionary_and_resumes(self):
        grid = {"budgets": [64, 128],
                "policy": [{"preset": "streaming", "sinks": [0, 4]}, {"preset": "random"}]}
        first, = kvsim.sweep(grid, self.folder / "out", traces=[SAMPLE])
        self.assertEqual(list(first.policy.values),
                         ["streaming,sinks=0", "streaming", "random"])
        again, = kvsim.sweep(grid, self.folder / "out", traces=[SAMPLE], overwrite=True)
        xarray.testing.assert_equal(first, again)

    def test_a_sweep_takes_paths_and_numbers_of_numpy(self):
        found, = kvsim.sweep({"traces": [kvsim.sample()], "layers": np.arange(1),
                              "budgets": np.array([0.1, 0.2]),
                              "policy": [{"preset": "snapkv", "window": np.array([8, 16])}]},
                             self.folder / "out")
        self.assertEqual(list(found.policy.values), ["snapkv,window=8", "snapkv,window=16"])
        self.assertEqual(list(found.budget.values), [0.1, 0.2])

    def test_one_layer_by_its_number(self):
        self.assertEqual(list(kvsim.replay(SAMPLE, "random", 0.2, layers=5).layer.values), [5])

    def test_a_file_that_is_kept_has_the_names_of_functions_too(self):
        target = self.folder / "kept.nc"
        results, _ = self.kept(newest, kvsim.Policy(newest, sinks=4), out=target)
        xarray.testing.assert_identical(kvsim.open_results(target), results)
        self.assertEqual(list(results.policy.values), ["python:newest", "python:newest,sinks=4"])

    def test_explain_scores_a_function_of_this_process_again(self):
        results, _ = self.kept(newest)
        found = results.kvsim.explain(layer=0)
        self.assertTrue((found.lost["score"].dropna() == found.lost["score"].dropna().index).all())
        self.assertTrue(found.lost["score"].notna().any())


class Mistakes(WithFolder):
    def refused(self, kind, pattern, *arguments, **options):
        with self.assertRaisesRegex(kind, pattern) as caught:
            kvsim.replay(*arguments, **options)
        self.assertEqual(len(str(caught.exception).splitlines()), 1)

    def test_each_is_one_line_of_its_kind(self):
        self.refused(kvsim.UsageError, "unknown preset.*snapkv", SAMPLE, "snapkw", 0.2)
        self.refused(kvsim.DataError, "no such file", self.folder / "none.h5", "snapkv", 0.2)
        self.refused(kvsim.UsageError, "bad budget", SAMPLE, "snapkv", 0)
        self.refused(kvsim.UsageError, "budgets: found none", SAMPLE, "snapkv", [])
        self.refused(kvsim.UsageError, "unknown metric: found no_such", SAMPLE, "snapkv", 0.2,
                     metrics="no_such")
        self.refused(kvsim.UsageError, "policies: found none", SAMPLE, [], 0.2)
        self.refused(kvsim.UsageError, "found None, expected the path", None, "snapkv", 0.2)
        with self.assertRaisesRegex(kvsim.DataError, "not a regular file"):
            kvsim.open_results(self.folder)
        file = self.folder / "taken.nc"
        file.touch()
        self.refused(kvsim.UsageError, "exists", SAMPLE, "random", 0.2, out=file)
        with self.assertRaisesRegex(kvsim.UsageError, "not a preset"):
            kvsim.policies("aggregate")

    def test_numbers_of_numpy_are_budgets(self):
        for budget, entries in ((np.int64(64), 64), (np.float32(0.2), 86), (5e-3, 2)):
            results = kvsim.replay(SAMPLE, "random", budget, layers=[0], wo_steps=1)
            self.assertEqual(int(results.budget_entries.max()), entries)

    def test_every_public_name_can_be_had(self):
        for name in kvsim.__all__:   # as help() and `from kvsim import *` ask for them
            getattr(kvsim, name)

    def test_of_a_function_say_file_and_line(self):
        def broken(layer):
            return layer.kays

        def short(layer):
            return layer.positions

        def empty(layer):
            return np.full((len(layer.keys), len(layer.positions)), np.nan)

        line = inspect.getsourcelines(broken)[1] + 1
        said = rf"test_package.py:{line}: broken\(layer 0\): AttributeError.*kays"
        self.refused(kvsim.Error, said, SAMPLE, broken, 0.2, layers=[0])
        self.refused(kvsim.DataError, r"wrong shape: found \[431\], expected \[3, 431\]",
                     SAMPLE, short, 0.2, layers=[0])
        self.refused(kvsim.DataError, r"NaN at \[0, 0\]", SAMPLE, empty, 0.2, layers=[0])
        self.refused(kvsim.UsageError, "without a name", SAMPLE, lambda layer: 0, 0.2)
        for odd in ("20 %", "0.2e0", "1_0", "٣", "0", "1.5", "-1"):   # as the program refuses them
            self.assertRaisesRegex(kvsim.UsageError, "expected a ratio", budget_text, odd)
        self.refused(kvsim.UsageError, "two functions are called newest", SAMPLE,
                     [newest, kvsim.Policy(snapkv, name="newest")], 0.2)


class Process(WithFolder):
    def test_ctrl_c_ends_the_program_and_leaves_nothing(self):
        # In the background of a shell the interrupt would be ignored.
        code = ("import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                "sys.path.insert(0, %r)\nimport kvsim\n"
                "print('ready', flush=True)\n"
                "kvsim.replay(%r, ['restkv', 'defensivekv', 'keepkv'] , '0.01:0.99:0.01', "
                "out=%r, metrics=['risk'])\n" % (str(ROOT / "python"), str(SAMPLE),
                                                 str(self.folder / "x.nc")))
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as child:
            self.assertEqual(child.stdout.readline().strip(), "ready")
            while not Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text():
                self.assertIsNone(child.poll(), "ended by itself")   # before the program was at work
                time.sleep(0.005)
            time.sleep(0.4)   # its handlers are set, and the process waits for it
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", said)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_python_runs_on_while_the_program_works(self):
        ticks = []
        stop = threading.Event()

        def tick():
            while not stop.is_set():
                ticks.append(time.perf_counter())
                time.sleep(0.005)

        thread = threading.Thread(target=tick)
        thread.start()
        kvsim.replay(SAMPLE, ["restkv", "keepkv"], [0.2, 0.5], layers=LAYERS)
        stop.set()
        thread.join()
        self.assertGreater(len(ticks), 10)

    def test_notes_are_warnings(self):
        kvsim.synth(self.folder / "s.h5", prompt=64, steps=8, queries="window:8")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kvsim.replay(self.folder / "s.h5", budgets=0.5)
        self.assertTrue(any(issubclass(one.category, kvsim.KvsimWarning) for one in caught))

    def test_importing_is_quick_and_imports_nothing_heavy(self):
        code = ("import sys; sys.path.insert(0, %r); import kvsim; "
                "print([m for m in ('numpy', 'xarray', 'torch', 'h5py') if m in sys.modules])"
                % str(ROOT / "python"))
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(said.stdout.strip(), "[]", said.stderr)


class Traces(WithFolder):
    def test_arrays_are_views_of_the_file(self):
        trace = kvsim.Trace(SAMPLE)
        layer = trace[15]
        self.assertIsInstance(layer.keys, np.memmap)
        self.assertEqual(layer.keys.dtype, np.float16)
        prompt = layer.prompt()
        self.assertIs(prompt.keys.base.base if prompt.keys.base is not layer.keys else
                      prompt.keys.base, layer.keys.base if prompt.keys.base is not layer.keys
                      else layer.keys)
        self.assertEqual(prompt.keys.shape, (3, 431, 64))
        self.assertEqual(prompt.query_positions[-1], 430)
        self.assertEqual([span.name for span in trace.spans], ["defense", "directive"])
        self.assertEqual(len(trace.text), trace.total_len)

    def test_attention_is_what_the_model_computed(self):
        import h5py

        layer = kvsim.Trace(SAMPLE)[15]
        with h5py.File(SAMPLE) as file:
            checked = file["check/query_position"][:]
            truth = file["layers/15/check_output"][:]
        rows = layer.attention()[:, np.searchsorted(layer.query_positions, checked)]
        for head, row in enumerate(rows):
            ours = row @ layer.values[head // layer.group_size].astype(np.float32)
            error = np.linalg.norm(ours - truth[head]) / np.linalg.norm(truth[head])
            self.assertLess(error, 5e-3)   # the trace stores float16

    def test_a_trace_of_tensors_from_elsewhere_replays_and_verifies(self):
        generator = np.random.default_rng(0)
        n, total, heads, kv, dim = 40, 52, 4, 2, 8
        q = generator.normal(size=(heads, total, dim))
        k, v = generator.normal(size=(2, kv, total, dim))
        wo = generator.normal(size=(heads, dim, 24))
        logits = np.einsum("hmd,hnd->hmn", q, k.repeat(2, 0)) / np.sqrt(dim)
        logits[:, np.triu(np.ones((total, total), bool), 1)] = -np.inf
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        z = weights / weights.sum(-1, keepdims=True) @ v.repeat(2, 0)
        path = self.folder / "mine.h5"
        with kvsim.TraceWriter(path, "float32") as writer:
            writer.describe(model="mine", num_layers=2, prompt_len=n, query_positions=range(total),
                            tokens=range(total), spans=[("rule", 2, 9)],
                            check_positions=[30, 51])
            writer.layer(1, queries=q, keys=k, values=v, wo=wo, check_output=z[:, [30, 51]])
        self.assertLess(kvsim.verify(path)["error"].max(), 1e-5)
        self.assertEqual(kvsim.Trace(path).spans, (kvsim.Span("rule", 2, 9),))
        results = kvsim.replay(path, ["h2o", newest], 0.5)
        self.assertEqual(results.sizes["policy"], 2)
        with self.assertRaisesRegex(kvsim.UsageError, "mine.h5: exists; overwrite=True replaces it"):
            kvsim.TraceWriter(path, "float32")
        with self.assertRaisesRegex(kvsim.Error, r"keys: found shape \[2, 51, 8\], expected \[KV heads, 52 tokens, 8 head size\]"):
            with kvsim.TraceWriter(self.folder / "short.h5") as writer:
                writer.describe(model="mine", num_layers=2, prompt_len=n,
                                query_positions=range(total))
                writer.layer(0, queries=q, keys=k[:, 1:], values=v, wo=wo)
        self.assertEqual([one.name for one in self.folder.iterdir()], ["mine.h5"])

    def test_bfloat16_and_compressed_traces_are_read_too(self):
        import h5py

        kvsim.synth(self.folder / "b.h5", prompt=64, steps=8, dtype="bfloat16", seed=3)
        kvsim.synth(self.folder / "f.h5", prompt=64, steps=8, dtype="float32", seed=3)
        rough = kvsim.Trace(self.folder / "b.h5")[0].keys
        exact = kvsim.Trace(self.folder / "f.h5")[0].keys
        np.testing.assert_allclose(rough, exact, rtol=1 / 128)
        with h5py.File(self.folder / "f.h5", "a") as file:
            values = file["layers/0/v"][()]
            del file["layers/0/v"]
            file.create_dataset("layers/0/v", data=values, compression="gzip")
        np.testing.assert_array_equal(kvsim.Trace(self.folder / "f.h5")[0].values, values)

    def test_bad_files_are_one_line(self):
        (self.folder / "text.h5").write_text("no")
        for path in (self.folder / "none.h5", self.folder / "text.h5"):
            with self.assertRaises(kvsim.DataError):
                kvsim.Trace(path)
        with self.assertRaisesRegex(kvsim.DataError, "no layer 1; the trace has 0, 5"):
            kvsim.Trace(SAMPLE)[1]


class Package(unittest.TestCase):
    def test_every_public_name_is_there_and_explained(self):
        for name in kvsim.__all__:
            try:
                found = getattr(kvsim, name)
            except (ModuleNotFoundError, kvsim.UsageError) as error:
                self.assertRegex(str(error), "torch|kvpress")   # what a press is made of
                continue
            self.assertTrue(inspect.getdoc(found), name)
        self.assertIn("typed", " ".join(p.name for p in (ROOT / "python/kvsim").iterdir()))

    def test_modules_import_each_other_in_no_circle(self):
        root = ROOT / "python" / "kvsim"
        names = {path: ".".join(path.relative_to(root).with_suffix("").parts)
                 for path in root.rglob("*.py") if path.name != "__init__.py"}
        imports = {name: set() for name in names.values()}
        for path, name in names.items():
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ImportFrom) or node.level == 0:
                    continue
                home = name.split(".")[:-node.level] + (node.module or "").split(".")
                home = ".".join(part for part in home if part)
                for found in (home, *(f"{home}.{one.name}".strip(".") for one in node.names)):
                    if found in imports and found != name:
                        imports[name].add(found)
        self.assertIn("results_file", imports["explanation"])   # the walk sees imports at all
        below = set()
        while more := {name for name in imports if name not in below and imports[name] <= below}:
            below |= more
        self.assertEqual(set(imports) - below, set())

    def test_requirements_are_those_of_the_wheel(self):
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

        def listed(path):
            lines = (line.split("#")[0].strip() for line in (ROOT / path).read_text().splitlines())
            return {line for line in lines if line}

        figures = {*project["dependencies"], *project["optional-dependencies"]["search"]}
        self.assertEqual(figures, listed("plots/requirements.txt"))
        extra = set(project["optional-dependencies"]["capture"])
        self.assertLessEqual(extra, listed("data/requirements.txt"))
        self.assertLessEqual(set(project["dependencies"]), listed("docs/requirements.txt"))

    def test_policies_are_tables(self):
        self.assertIn("snapkv:official", kvsim.policies().index)
        self.assertEqual(kvsim.policies("snapkv,window=64").loc["window", "value"], "64")


class Pages(unittest.TestCase):
    def test_the_table_of_what_a_study_takes_is_computed(self):
        page, (header, rows) = (ROOT / "docs/study.md").read_text(), study_costs.table()
        lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
        self.assertIn("<!-- cost:begin -->\n" + "\n".join(lines) + "\n<!-- cost:end -->", page)


if __name__ == "__main__":
    unittest.main()
