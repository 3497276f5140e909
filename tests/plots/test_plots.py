"""Tests of the figures, on small made-up results files. Run: python3 tests/plots/test_plots.py

Needs the modules of plots/requirements.txt; without them one line says so and nothing is tested.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import zlib
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DRAW = ROOT / "plots" / "draw.py"
sys.path[:0] = [str(ROOT / "python"), str(HERE)]

import h5netcdf  # noqa: F401
import matplotlib.image
import numpy as np
import xarray
from matplotlib.text import Text

import fake_results
from kvsim.plots import draw, load, measures, style
from kvsim.plots.figures import explain, fragility, retained_importance, stream_error, worst_case
from kvsim.plots.figures import budget as figures_budget
from kvsim.plots.figures import bytes as figures_bytes

SMALL = {"policies": ("full", "random", "snapkv,window=16"), "budgets": (0.2, 0.5),
         "layers": (0, 5), "steps": 20}
ALL = {"budget", "keep_rate", "retained_importance", "stream_error", "worst_case"}
THREE = ("defense", "middle", "directive")
SPANS = {"keep_rate"}


class PlotTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "figs"

    def file(self, name="results.nc", **options):
        return fake_results.write(self.folder / name, **{**SMALL, **options})

    def draw(self, *arguments):
        """Runs the entry point in this process: (exit code, output lines, error lines)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = draw.main([str(one) for one in arguments])
            except SystemExit as stop:  # argparse ends the process on wrong usage
                code = stop.code
        return code, out.getvalue().splitlines(), err.getvalue().splitlines()

    def planned(self, *arguments):
        """The same, for tests of which figures there are: they are made, but not rendered."""
        with unittest.mock.patch("kvsim.plots.style.save", lambda _, path: path.touch() or True):
            return self.draw(*arguments)

    def refused(self, code, pattern, *arguments):
        """Expects this exit code, one line of error that has `pattern`, and no figure."""
        got, out, err = self.draw(*arguments)
        self.assertEqual((got, out, len(err)), (code, [], 1), err)
        self.assertRegex(err[0], pattern)


class EveryFigureTest(PlotTest):
    """Of one results file, drawn once."""

    def setUp(self):   # in place of a folder for each test
        pass

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.out = cls.folder / "figs"
        cls.results = cls.file(cls, spans=THREE)
        cls.said = cls.draw(cls, cls.results, "-o", cls.out)

    def test_each_is_written_in_both_formats_and_its_path_printed(self):
        code, out, err = self.said
        self.assertEqual((code, err), (0, []))
        expected = {str(self.out / f"{name}.{kind}") for name in ALL for kind in ("pdf", "png")}
        self.assertEqual(set(out), expected)
        for path in out:
            self.assertGreater(os.path.getsize(path), 2000, path)
        self.assertEqual({path.name for path in self.out.iterdir()},
                         {Path(path).name for path in expected}, "nothing else is left behind")

    def test_a_picture_has_more_than_one_colour(self):
        for path in self.out.glob("*.png"):
            pixels = np.rint(matplotlib.image.imread(path)[..., :3] * 255) @ (65536, 256, 1)
            self.assertGreater(len(np.unique(pixels)), 50, path)

    def test_fonts_are_embedded_as_outlines_and_none_is_type_3(self):
        for path in self.out.glob("*.pdf"):
            text = pdf_objects(path)
            self.assertIn(b"/FontFile2", text, path)
            self.assertNotIn(b"/Type3", text, path)

    def test_the_same_results_give_the_same_bytes_in_another_process(self):
        subprocess.run([sys.executable, DRAW, self.results, "-o", self.folder / "again"],
                       check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "PYTHONHASHSEED": "1"})
        sums = [{path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                 for path in folder.iterdir()} for folder in (self.out, self.folder / "again")]
        self.assertEqual(sums[0], sums[1])


class BytesTest(PlotTest):
    def test_the_error_is_drawn_against_every_form_of_the_cache(self):
        def measured(data):
            for at, form in enumerate(figures_bytes.FORMS):
                shape = data["stream_error_rms"].shape
                data[form] = (("policy", "budget"), (at + 1) * 2.0 ** 20 * np.ones(shape))
            return data
        code, out, err = self.draw(self.file(edit=measured), "-o", self.out, "--only", "bytes",
                                   "--formats", "png")
        self.assertEqual((code, err), (0, []))
        self.assertEqual(out, [str(self.out / "bytes.png")])
        results = load.open_results(self.folder / "results.nc")
        figure = figures_bytes.draw(results, None)
        drawn = [ax for ax in figure.axes if ax.get_visible() and ax.lines]
        self.assertEqual(len(drawn), len(figures_bytes.FORMS))
        for at, ax in enumerate(drawn):
            for line in ax.lines:   # one of the policies loses nothing: it has no marker
                self.assertEqual(set(line.get_xdata()) - {at + 1.0}, set())

    def test_results_without_bytes_have_no_such_figure(self):
        code, out, err = self.draw(self.file(), "-o", self.out, "--only", "bytes")
        self.assertEqual(out, [])
        self.assertIn("bytes", err[0])


class FiguresTest(PlotTest):
    def test_several_files_get_a_folder_each_even_with_equal_names(self):
        (self.folder / "other").mkdir()
        files = [self.file("a.nc"), self.file("b.nc"), self.file("other/a.nc")]
        code, out, _ = self.planned(*files, "-o", self.out, "--only", "budget", "--formats", "png")
        self.assertEqual(code, 0)
        self.assertEqual(out, [str(self.out / stem / "budget.png") for stem in ("a", "b", "a-2")])

    def test_thirty_policies_are_one_figure(self):
        policies = ("full", *(f"snapkv,window={w}" for w in range(1, 31)))
        code, out, _ = self.draw(self.file(policies=policies, layers=(3,)), "-o", self.out,
                                 "--formats", "png",
                                 "--only", "retained_importance")
        self.assertEqual(code, 0)
        self.assertEqual([Path(path).stem for path in out], ["retained_importance"])

    def test_one_layer_one_budget_one_policy_one_step(self):
        results = self.file(policies=("h2o",), budgets=(0.5,), layers=(7,), steps=1)
        self.assertEqual(self.draw(results, "-o", self.out, "--formats", "png")[0], 0)

    def test_worst_cases_are_those_of_the_metrics_asked_for(self):
        results = load.open_results(self.file())
        def cells(name, *dims):
            return results.variable(name, "policy", "budget", *dims).isel(budget=0)
        worst, over_steps = worst_case.maps_of("stream_error", cells, False)
        data = results.data.isel(budget=0)
        np.testing.assert_allclose(worst.values, data.residual_error.max("step"))
        np.testing.assert_allclose(worst.summary, data.stream_error.max("step"))
        np.testing.assert_allclose(over_steps.summary, data.stream_error_rms)
        np.testing.assert_allclose(over_steps.values ** 2, (data.residual_error ** 2).mean("step"))
        for metric, panels in ((None, 3), (["retained_importance"], 3), (["residual_error"], 2),
                               (["stream_error", "output_error"], 4), (list(measures.NAMES), 7)):
            options = SimpleNamespace(metric=metric, budget="0.2")
            figure = worst_case.draw(results, options, worst_case.find(results, options))
            self.assertEqual(len(figure.axes), panels, metric)

    def test_figures_name_what_holds_another_share_than_the_budget_gives(self):
        def held(data):
            factors = np.ones((data.sizes["policy"], data.sizes["budget"]))
            factors[1], factors[2, 1] = (9.84, 4.86), 0.9
            why = np.select([factors > 1.05, factors < 0.95], [4, 5], 0).astype(np.float32)
            return data.assign(held_of_budget=(("policy", "budget"), factors), unranked=(("policy", "budget"), why))
        results = load.open_results(self.file(policies=("full", "h2o", "knorm"), budgets=(0.1, 0.2), edit=held))
        more, less = ("\nAbove the budget by over a twentieth: h2o ({} times)",
                      "\nBelow the budget by over a twentieth: knorm (0.9 times)")
        self.assertEqual(measures.held_note([results], results.policies), more.format("4.86 to 9.84") + less)
        self.assertEqual(measures.held_note([results], ["h2o", "full"], "10%"), more.format("9.84"))
        self.assertEqual(measures.held_note([results], ["knorm"], "0.1"), "")
        self.assertEqual(measures.held_note([load.open_results(self.file("old.nc"))], ["h2o"]), "")
        options = SimpleNamespace(metric=None, budget="0.2", layers=None)
        for figure in (stream_error, figures_budget, worst_case, retained_importance):
            given = (figure.find(results, options),) if hasattr(figure, "find") else ()
            drawn = figure.draw(results, options, *given)
            texts = " ".join(" ".join(one.get_text() for one in drawn.findobj(Text)).split())
            self.assertIn("Above the budget by over a twentieth: h2o (", texts, figure.__name__)

    def test_an_unknown_metric_is_answered_with_the_known_ones(self):
        self.refused(2, "no metric 'lost'; known: stream_error, retained_importance, output_error, "
                     "residual_error", self.file(), "-o", self.out, "--metric", "lost")

    def test_many_layers(self):
        results = self.file(layers=range(30), policies=("full", "h2o"))
        self.assertEqual(self.draw(results, "-o", self.out, "--formats", "png", "--only",
                                   "retained_importance,worst_case")[0], 0)

    def test_values_that_are_undefined_everywhere_do_not_stop_a_figure(self):
        def blank(data):
            for name in data.data_vars:
                if data[name].dtype.kind == "f":
                    data[name][...] = np.nan
            return data
        for name, policies in (("few", SMALL["policies"]), ("many", ("a", "b", "c", "d"))):
            path = self.file(f"{name}.nc", edit=blank, policies=policies,
                             spans=THREE)
            code, _, err = self.draw(path, "-o", self.out / name, "--formats", "png")
            self.assertEqual((code, err), (0, []))

    def test_layers_and_policies_can_be_chosen(self):
        self.assertEqual(self.draw(self.file(), "-o", self.out, "--layers", "5", "--policy",
                                   "snapkv,window=16", "--formats", "png")[0], 0)


IMPORTANCE = {"window": "2", "indicator": "importance", "aggregate": "mean", "group": "mean",
              "prior": "none", "weight": "none", "single_row": "0"}


class FragilityTest(PlotTest):
    RECORDS = {"importance,window=2": IMPORTANCE,
               "importance,window=2,aggregate=single,single_row=1":
                   {**IMPORTANCE, "aggregate": "single", "single_row": "1"},
               "importance,window=2,aggregate=single":
                   {**IMPORTANCE, "aggregate": "single", "single_row": "0"},
               "importance,window=2,aggregate=max,group=max":
                   {**IMPORTANCE, "aggregate": "max", "group": "max", "single_row": "0"},
               "importance,window=2,aggregate=max,group=max,indicator=attention,prior=head-mean,"
               "weight=projected-l1":
                   {**IMPORTANCE, "aggregate": "max", "group": "max", "indicator": "attention",
                    "prior": "head-mean", "weight": "projected-l1", "prior_scale": "1"},
               "defensivekv:code,window=2": {**IMPORTANCE, "aggregate": "max", "stage1": "mass"},
               "oracle-mean": {"queries": "future"}}

    def fragile(self):
        config = {"policies": [{"record": record, "parameters": keys}
                               for record, keys in self.RECORDS.items()]}
        return self.file(policies=tuple(self.RECORDS), edit=lambda data: data.assign_attrs(
            config=json.dumps(config)))

    def test_rows_and_the_defensive_step_are_found_by_their_parameters(self):
        base, second, first, largest, defensive, code, _ = self.RECORDS
        results = load.open_results(self.fragile())
        self.assertEqual(fragility.find(results, None), [([first, second], {
            "record as it is": base, "max over rows and heads": largest, "defensive step": defensive,
            "defensivekv:code": code, "hindsight": "oracle-mean"})])

    def test_bands_and_rows_are_drawn(self):
        code, out, err = self.draw(self.fragile(), "-o", self.out, "--formats", "png", "--only",
                                   "fragility")
        self.assertEqual((code, err), (0, []))
        self.assertEqual([Path(path).stem for path in out], ["fragility", "fragility-rows"])

    def test_other_results_have_no_band(self):
        self.refused(3, "cannot draw fragility: .*replay --fragility", self.file(), "-o", self.out,
                     "--only", "fragility")


class WhatTheFileLacksTest(PlotTest):
    def test_without_spans_keep_rate_is_left_out_with_one_line(self):
        code, out, err = self.draw(self.file(spans=()), "-o", self.out, "--formats", "png")
        self.assertEqual(code, 0)
        self.assertEqual({Path(path).stem for path in out}, ALL - SPANS)
        self.assertEqual(len(err), 1)
        self.assertRegex(err[0], "keep_rate left out: .*results.nc: no labelled spans")

    def test_without_residual_error_the_other_metrics_are_drawn(self):
        self.assertEqual(self.draw(self.file(residual=False), "-o", self.out, "--only", "budget",
                                   "--formats", "png")[0], 0)

    def test_a_figure_asked_for_that_cannot_be_drawn_is_bad_data(self):
        results = self.file(drop=("outlier_count",))
        self.refused(3, "cannot draw worst_case: .*no variable outlier_count", results, "-o",
                     self.out, "--only", "worst_case", "--metric", "retained_importance")

    def test_a_variable_over_other_dimensions_is_bad_data(self):
        results = self.file(edit=lambda data: data.assign(
            output_error_mean=data["output_error_mean"].isel(layer=0)))
        code, _, err = self.draw(results, "-o", self.out, "--only", "budget")
        self.assertEqual(code, 3)
        self.assertRegex(err[0], r"output_error_mean has dimensions \(policy, budget\), "
                                 r"expected \(policy, budget, layer\)")


THEORY = {
    "kvsim": "theory",
    "parameters": {"m": 2, "epsilon": 0.5, "a": 1, "b": 1, "c": 3, "prior": 1, "steady": 2,
                   "samples": 100, "dwell": None},
    "windows": [{"m": m, "rows": [
        {"quantity": name, "closed_form": None if name.startswith("P(mean") else 0.5,
         "monte_carlo": 0.5, "standard_error": 0.05, "agrees": True}
        for name in ("E[mean]", "E[max]", "E[max(X, prior)]", "P(mean outranks steady)",
                     "P(max outranks steady)", "P(max with prior outranks steady)")]}
        for m in (1, 2)],
    "distribution": {"x": [0, 1, 2, 3], "closed_form": [0, 0.25, 0.6, 1],
                     "monte_carlo": [0, 0.2, 0.6, 1]}}


EXPLAIN = {
    "kvsim": "explain", "trace": "t.h5", "model": "example/tiny", "policy": "snapkv",
    "budget": "0.5", "layer": 3, "step": 7, "step_text": " so", "heads": 2,
    "retained_importance": 0.75,
    "lost": [{"position": 1, "lost": 0.2}, {"position": 2, "lost": 0.05}],
    "prompt": [{"text": text, "importance": importance, "lost": lost, "kept_heads": kept,
                "merged_heads": 0}
               for text, importance, lost, kept in (
                   ("One", 0.6, 0.0, 2), (" two\n", 0.2, 0.2, 0), ("\t$3$", 0.2, 0.05, 1),
                   ("", 0.0, 0.0, 0))]}


class DocumentTest(PlotTest):
    def document(self, content):
        path = self.folder / "document.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def test_the_json_of_explain_is_drawn(self):
        code, out, err = self.draw(self.document(EXPLAIN), "-o", self.out, "--formats", "png")
        self.assertEqual((code, out, err), (0, [str(self.out / "explain.png")], []))

    def test_the_text_of_a_prompt_is_broken_between_tokens(self):
        width = int((style.width() - 2 * explain.MARGIN) / explain.CHARACTER)
        places, lines = explain.layout(["a" * (width - 1), "b", "", "c", "d" * (width + 5)])
        self.assertEqual(places, [(0, 0), (0, width - 1), (1, 0), (1, 1), (2, 0)])
        self.assertEqual(lines, 3)

    def test_other_json_is_bad_data(self):
        for content, pattern in (("{", "not JSON"), ("[]", "no field kvsim"),
                                 ('{"kvsim": "dance"}', "nothing to draw")):
            self.refused(3, pattern, self.document(content), "-o", self.out)
        self.refused(3, "no such file", self.folder / "absent.json", "-o", self.out)
        self.refused(3, "cannot draw budget: .* is not what budget is drawn from",
                     self.document(THEORY), "-o", self.out, "--only", "budget")


class RefusalTest(PlotTest):
    def test_files_that_are_no_results(self):
        text = self.folder / "notes.nc"
        text.write_text("not a netCDF file")
        self.refused(3, "no such file", self.folder / "absent.nc", "-o", self.out)
        self.refused(3, "not an HDF5 file", text, "-o", self.out)
        other = self.file(edit=lambda data: data.drop_dims("step"))
        self.refused(3, "no dimension step", other, "-o", self.out)

    def test_a_file_cut_short(self):
        results = self.file()
        results.write_bytes(results.read_bytes()[:3000])
        self.refused(3, "truncated: found 3000 bytes", results, "-o", self.out)

    def test_layers_and_policies_that_the_file_does_not_have(self):
        self.refused(3, "no layer 4; the file has 0, 5", self.file(), "-o", self.out,
                     "--layers", "0,4")
        self.refused(3, "no policy h2o; the file has full, random", self.folder / "results.nc",
                     "-o", self.out, "--policy", "h2o")

    def test_wrong_usage(self):
        results = self.file()
        self.refused(2, "no figure 'bugdet'", results, "-o", self.out, "--only", "bugdet")
        self.refused(2, "no format 'svg'", results, "-o", self.out, "--formats", "svg")
        self.refused(2, "--budget much: expected a ratio", results, "-o", self.out,
                     "--budget", "much")
        self.refused(2, "expected a list such as", results, "-o", self.out, "--layers", "a")
        self.refused(2, "required: -o", results)

    def test_existing_figures_are_kept_unless_overwriting_was_asked_for(self):
        arguments = (self.file(), "-o", self.out, "--only", "budget", "--formats", "png")
        self.assertEqual(self.draw(*arguments)[0], 0)
        self.refused(2, "budget.png: exists; --overwrite", *arguments)
        self.assertEqual(self.draw(*arguments, "--overwrite")[0], 0)

    def test_a_folder_in_the_place_of_a_figure_is_never_replaced(self):
        (self.out / "budget.png").mkdir(parents=True)
        self.refused(2, "a folder stands where a file is to be written", self.file(spans=THREE), "-o", self.out,
                     "--overwrite")

    def test_an_output_folder_that_cannot_be_made(self):
        results = self.file(spans=THREE)
        code, _, err = self.draw(results, "-o", results)
        self.assertNotEqual(code, 0)
        self.assertEqual(len(err), 1, err)


class PartsTest(PlotTest):
    def test_another_budget_than_the_one_asked_for_is_said(self):
        for budget, said in (("0.25", 1), ("50%", 0)):
            _, _, err = self.planned(self.file(), "-o", self.folder / budget, "--budget", budget)
            self.assertEqual(sum("no budget 0.25; figures that show one take the nearest, 0.2"
                                 in line for line in err), said, err)

    def test_the_nearest_budget_is_taken(self):
        results = load.open_results(self.file(budgets=(0.9, 0.4, 0.1)))
        for wanted, nearest in ((None, 0.4), ("0.5", 0.4), ("85%", 0.9), ("20", 0.1), ("0.1", 0.1),
                                ("1000", 0.9)):
            self.assertEqual(results.nearest_budget(wanted), nearest, wanted)

    def test_counts_are_named_as_they_were_typed(self):
        results = load.open_results(self.file(budgets=(0.16, 0.64), labels=("64", "256")))
        self.assertEqual(results.budget_text(0.64), "256 tokens (ratio 0.64)")
        self.assertEqual(results.nearest_budget("64"), 0.16)
        self.assertTrue(results.budgets_are_counts)

    def test_a_subtitle_names_model_lengths_and_trace(self):
        self.assertEqual(load.open_results(self.file()).subtitle,
                         "example/tiny-360M, n = 400 prompt tokens, T = 20 later steps, "
                         "trace example.h5")

    def test_at_most_ten_lines_have_looks_of_their_own_and_no_two_are_alike(self):
        for count in (1, 9, 10, 11, 19, 21, 30, 31):
            policies = ("full", *(f"p{i}" for i in range(count)))
            results = load.open_results(self.file(f"{count}.nc", policies=policies, spans=(),
                                                  layers=(0,), budgets=(0.5,), steps=2))
            looks = style.line_looks(results, policies)
            own = [str(look) for policy, look in looks.items() if look is not style.OTHERS]
            self.assertEqual(len(own), 1 + min(count, 10))   # `full` beside them
            self.assertEqual(len(set(own)), len(own))
            keys = [one.get_label() for one in style.policy_keys(results, policies)]
            self.assertEqual(keys[len(own):], [f"{count - 10} other{'s' * (count > 11)}"] * (count > 10))
            error = results.variable("stream_error_rms", "policy", "budget").values[1:, 0]
            if count > 10:
                lost = [policies[1 + at] for at in np.argsort(error)[:10]]
                self.assertEqual(set(lost), {one for one in looks if looks[one] is not style.OTHERS}
                                 - {"full"})

    def test_the_running_median_ignores_what_is_undefined(self):
        line = np.full(40, 0.8)
        line[[3, 20]] = (0.0, np.nan)
        self.assertTrue(np.all(retained_importance.running_median(line) == 0.8))

    def test_the_summary_over_layers_leaves_out_undefined_values(self):
        values = xarray.DataArray([[0.2, np.nan, 0.4], [np.nan] * 3], dims=("policy", "layer"))
        least, average, outliers = worst_case.maps_of("retained_importance",
                                                      lambda name, *dims: values, True)
        np.testing.assert_allclose(least.summary, [0.2, np.nan])
        np.testing.assert_allclose(average.summary, [0.3, np.nan])
        np.testing.assert_allclose(outliers.summary, [0.6, np.nan])
        self.assertEqual([worst_case.share(v) for v in (0.204, 0.9949, 0.999, 1, 0)],
                         [".20", ".99", "1.0", "1.0", ".00"])


def pdf_objects(path):
    """The bytes of a PDF with its compressed streams unpacked."""
    data = path.read_bytes()
    parts = [data]
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL):
        with contextlib.suppress(zlib.error):
            parts.append(zlib.decompress(stream))
    return b"".join(parts)


if __name__ == "__main__":
    unittest.main()
