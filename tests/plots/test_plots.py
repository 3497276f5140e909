"""Tests of the figures, on small made-up results files. Run: python3 tests/plots/test_plots.py

Needs the modules of plots/requirements.txt; without them one line says so and nothing is tested.
"""

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DRAW = ROOT / "plots" / "draw.py"
sys.path[:0] = [str(ROOT), str(HERE)]

try:
    import h5netcdf  # noqa: F401
    import matplotlib.image
    import numpy as np

    import fake_results
    from plots import draw, load, losses, statistics, style
    from plots.figures import (explain, fragility, needles, retained_importance, span_scores,
                               traces, worst_case)
except ModuleNotFoundError as error:
    print(f"tests/plots skipped: Python has no module {error.name} "
          "(plots/requirements.txt lists what the figures need)")
    raise unittest.SkipTest(f"no module {error.name}") if __name__ != "__main__" else SystemExit(0)

SMALL = {"policies": ("full", "random", "snapkv,window=16"), "budgets": (0.2, 0.5),
         "layers": (0, 5), "steps": 20}
ALL = {"bias_index", "budget", "keep_rate", "keep_rate_layers", "retained_importance",
       "span_order", "span_scores", "worst_case"}
SPANS = {"bias_index", "keep_rate", "keep_rate_layers", "span_order", "span_scores"}


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

    def refused(self, code, pattern, *arguments):
        """Expects this exit code, one line of error that has `pattern`, and no figure."""
        got, out, err = self.draw(*arguments)
        self.assertEqual((got, out, len(err)), (code, [], 1), err)
        self.assertRegex(err[0], pattern)


class FiguresTest(PlotTest):
    def test_every_figure_is_written_in_both_formats_and_its_path_printed(self):
        code, out, err = self.draw(self.file(), "-o", self.out)
        self.assertEqual((code, err), (0, []))
        expected = {str(self.out / f"{name}.{kind}") for name in ALL for kind in ("pdf", "png")}
        self.assertEqual(set(out), expected)
        for path in out:
            self.assertGreater(os.path.getsize(path), 2000, path)
        self.assertEqual({path.name for path in self.out.iterdir()},
                         {Path(path).name for path in expected}, "nothing else is left behind")

    def test_a_picture_has_more_than_one_colour(self):
        self.draw(self.file(), "-o", self.out, "--formats", "png")
        for path in self.out.iterdir():
            pixels = np.rint(matplotlib.image.imread(path)[..., :3] * 255) @ (65536, 256, 1)
            self.assertGreater(len(np.unique(pixels)), 50, path)

    def test_fonts_are_embedded_as_outlines_and_none_is_type_3(self):
        self.draw(self.file(), "-o", self.out, "--formats", "pdf")
        for path in self.out.iterdir():
            text = pdf_objects(path)
            self.assertIn(b"/FontFile2", text, path)
            self.assertNotIn(b"/Type3", text, path)

    def test_the_same_results_give_the_same_bytes_in_another_process(self):
        results, sums = self.file(), []
        for seed in "12":
            out = self.folder / seed
            subprocess.run([sys.executable, DRAW, results, "-o", out], check=True,
                           stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONHASHSEED": seed})
            sums.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                         for path in out.iterdir()})
        self.assertEqual(sums[0], sums[1])

    def test_several_files_get_a_folder_each_even_with_equal_names(self):
        (self.folder / "other").mkdir()
        files = [self.file("a.nc"), self.file("b.nc"), self.file("other/a.nc")]
        code, out, _ = self.draw(*files, "-o", self.out, "--only", "budget", "--formats", "png")
        self.assertEqual(code, 0)
        self.assertEqual(out, [str(self.out / stem / "budget.png") for stem in ("a", "b", "a-2")])

    def test_thirty_policies_are_spread_over_several_figures(self):
        policies = ("full", *(f"snapkv,window={w}" for w in range(1, 31)))
        code, out, _ = self.draw(self.file(policies=policies, layers=(3,)), "-o", self.out,
                                 "--formats", "png",
                                 "--only", "retained_importance")
        self.assertEqual(code, 0)
        self.assertEqual([Path(path).stem for path in out],
                         [f"retained_importance-{i}" for i in (1, 2, 3)])

    def test_one_layer_one_budget_one_policy_one_step(self):
        results = self.file(policies=("h2o",), budgets=(0.5,), layers=(7,), steps=1)
        self.assertEqual(self.draw(results, "-o", self.out, "--formats", "png")[0], 0)

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
        code, _, err = self.draw(self.file(edit=blank), "-o", self.out, "--formats", "png")
        self.assertEqual((code, err), (0, []))

    def test_layers_and_policies_can_be_chosen(self):
        self.assertEqual(self.draw(self.file(), "-o", self.out, "--layers", "5", "--policy",
                                   "snapkv,window=16", "--formats", "png")[0], 0)


class FragilityTest(PlotTest):
    RECORDS = {"importance,window=2": {"window": "2", "aggregate": "mean", "group": "mean",
                                       "prior": "none", "single_row": "0"},
               "importance,window=2,aggregate=single,single_row=1":
                   {"window": "2", "aggregate": "single", "group": "mean", "prior": "none",
                    "single_row": "1"},
               "importance,window=2,aggregate=single":
                   {"window": "2", "aggregate": "single", "group": "mean", "prior": "none",
                    "single_row": "0"},
               "importance,window=2,aggregate=max,group=max,prior=head-mean":
                   {"window": "2", "aggregate": "max", "group": "max", "prior": "head-mean",
                    "single_row": "0", "prior_scale": "1"},
               "oracle-mean": {"queries": "future"}}

    def fragile(self):
        config = {"policies": [{"record": record, "parameters": keys}
                               for record, keys in self.RECORDS.items()]}
        return self.file(policies=tuple(self.RECORDS), edit=lambda data: data.assign_attrs(
            config=json.dumps(config)))

    def test_rows_and_the_defensive_step_are_found_by_their_parameters(self):
        base, second, first, defensive, _ = self.RECORDS
        self.assertEqual(fragility.groups(load.open_results(self.fragile())),
                         {base: {"singles": [first, second], "defensive": defensive}})

    def test_bands_and_rows_are_drawn(self):
        code, out, err = self.draw(self.fragile(), "-o", self.out, "--formats", "png", "--only",
                                   "fragility")
        self.assertEqual((code, err), (0, []))
        self.assertEqual([Path(path).stem for path in out], ["fragility", "fragility-rows"])

    def test_other_results_have_no_band(self):
        self.refused(3, "cannot draw fragility: .*replay --fragility", self.file(), "-o", self.out,
                     "--only", "fragility")


class AttentionTest(PlotTest):
    """Figures of what is measured of the attention itself."""

    PAGES = {"risk": ["risk", "risk-layers"], "attention_cdf": ["attention_cdf"],
             "late_importance": ["late_importance"], "locality": ["locality"],
             "drift": ["drift", "drift-layers"], "key_norm": ["key_norm"],
             "importance_correlation": ["importance_correlation"]}

    def drawn(self, **options):
        code, out, err = self.draw(self.file(**options), "-o", self.out, "--formats", "png",
                                   "--overwrite", "--only", ",".join(self.PAGES))
        self.assertEqual((code, err), (0, []))
        return [Path(path).stem for path in out]

    def test_every_measure_has_its_figure(self):
        self.assertEqual(self.drawn(edit=fake_results.add_attention),
                         [page for pages in self.PAGES.values() for page in pages])

    def test_one_layer_and_undefined_values_can_be_drawn(self):
        def blank(data):
            data = fake_results.add_attention(data)
            for name in data.data_vars:
                if data[name].dtype.kind == "f":
                    data[name][...] = np.nan
            return data
        self.drawn(layers=(3,), edit=fake_results.add_attention)
        self.drawn(edit=blank)

    def test_without_the_measure_each_names_the_metric_to_ask_for(self):
        for name in self.PAGES:
            self.refused(3, f"cannot draw {name}: .*--metric", self.file(), "-o", self.out,
                         "--only", name)

    def test_the_table_of_estimators_holds_means_over_layers(self):
        path = self.file(edit=fake_results.add_attention)
        self.draw(path, "-o", self.out, "--formats", "csv", "--only", "risk")
        with (self.out / "risk-layers.csv").open() as file:
            rows = {row["estimator"]: row for row in csv.DictReader(file)}
        wanted = load.open_results(path).data["risk_spearman"].values.mean(axis=0)
        for name, value in zip(("single", "max_prior", "defensivekv"), wanted):
            self.assertAlmostEqual(float(rows[name]["risk_spearman"]), value)


class SeveralTracesTest(PlotTest):
    """Figures that compare results files."""

    def files(self, count=2, **options):
        return [self.file(f"{name}.nc", seed=seed, edit=lambda data, name=name: data.assign_attrs(
            trace=f"/data/{name}.h5"), **options)
            for seed, name in enumerate("abcdefghijkl"[:count])]

    def test_they_stand_beside_the_folders_of_the_files(self):
        code, out, err = self.draw(*self.files(), "-o", self.out, "--formats", "png")
        self.assertEqual((code, err), (0, []))
        together = {path.stem for path in self.out.iterdir() if path.is_file()}
        self.assertEqual(together, {"traces", "traces-table", "keep_rate_traces"})
        self.assertEqual({path.name for path in self.out.iterdir() if path.is_dir()}, {"a", "b"})

    def test_the_numbers_of_traces_are_those_of_the_files(self):
        files = self.files(3)
        code, out, _ = self.draw(*files, "-o", self.out, "--only", "traces", "--formats", "csv",
                                 "--budget", "0.2")
        self.assertEqual((code, out), (0, [str(self.out / "traces.csv")]))
        with (self.out / "traces.csv").open() as file:
            rows = {(row["policy"], row["measure"]): row for row in csv.DictReader(file)}
        for k, name in enumerate("abc"):
            values = load.open_results(files[k]).data.retained_importance.values[:, 0]
            expected = {"worst step of all layers": values[1].min(),
                        "worst step, mean over layers": values[1].min(axis=1).mean(),
                        "mean over layers and steps": values[1].mean(),
                        "below 0.5, of (layer, step) pairs": 100 * (values[1] < 0.5).mean()}
            for measure, value in expected.items():
                self.assertAlmostEqual(float(rows["random", measure][name]), value)
        row = rows["random", "mean over layers and steps"]
        mean = np.mean([float(row[name]) for name in "abc"])
        self.assertAlmostEqual(float(row["mean"]), mean)
        self.assertTrue(float(row["low"]) <= mean <= float(row["high"]))
        self.assertNotIn(("full", "mean over layers and steps"), rows)

    def test_one_trace_has_an_interval_over_blocks_of_steps(self):
        results = load.open_results(self.file(steps=40))
        class Options:
            budget = "0.2"
        values, means, (low, high) = traces.measured([results], Options, ["random"])
        self.assertEqual(values.shape, (4, 1, 1))
        self.assertTrue(low[2, 0] < means[2, 0] < high[2, 0])

    def test_files_without_a_policy_in_common_are_refused(self):
        files = [self.file(f"{name}.nc", policies=(name,)) for name in ("h2o", "tova")]
        self.refused(3, "cannot draw traces: .*no policy in common", *files, "-o", self.out,
                     "--only", "traces")

    def test_documents_are_not_compared(self):
        path = self.folder / "theory.json"
        path.write_text(json.dumps(THEORY))
        self.refused(3, "cannot draw traces", path, "-o", self.out, "--only", "traces")

    def test_twelve_traces_and_undefined_values(self):
        def blank(data):
            data["retained_importance"][1] = np.nan
            return data
        files = self.files(11) + [self.file("blank.nc", edit=blank)]
        code, _, err = self.draw(*files, "-o", self.out, "--only", "traces,keep_rate_traces",
                                 "--formats", "png")
        self.assertEqual((code, err), (0, []))


def with_config(records):
    """An edit that writes the parameters of {record: keys} into the attribute `config`."""
    config = {"policies": [{"record": record, "parameters": keys}
                           for record, keys in records.items()]}
    return lambda data: data.assign_attrs(config=json.dumps(config))


PLAIN = {"constrain": "none", "whitelist": "none", "window": "8"}


class LossesTest(PlotTest):
    """Fairness gain and Pareto frequency, on losses written by hand."""

    RECORDS = {"h2o": PLAIN, "h2o,constrain=fair": {**PLAIN, "constrain": "fair"},
               "h2o,whitelist=defense": {**PLAIN, "whitelist": "defense"},
               **{f"h2o,constrain=debias,debias_lambda={value}":
                  {**PLAIN, "constrain": "debias", "debias_lambda": value, "fair_scores": "local"}
                  for value in ("0", "0.5", "1")},
               "tova": {**PLAIN, "window": "1"}}
    BUDGETS = (0.2, 0.5, 1.0)

    def results(self, name, scores):
        """`scores`: {record: class score by budget}; the other records have 1 everywhere."""
        def edit(data):
            values = np.ones(data.span_retained_importance.shape)
            for record, row in scores.items():
                values[list(self.RECORDS).index(record)] = np.array(row)[:, None, None]
            data["span_retained_importance"] = (data.span_retained_importance.dims, values)
            return with_config(self.RECORDS)(data)
        return self.file(name, policies=tuple(self.RECORDS), budgets=self.BUDGETS, edit=edit)

    def rows(self, figure, *files):
        code, out, err = self.draw(*files, "-o", self.out, "--only", figure, "--formats",
                                   "csv,png")
        self.assertEqual((code, err), (0, []))
        with (self.out / f"{figure}.csv").open() as file:
            return list(csv.DictReader(file))

    def test_the_gain_is_half_of_what_both_losses_fall_by(self):
        wish = self.results("wish.nc", {"h2o": (0.4, 0.6, 1), "h2o,constrain=fair": (0.3, 0.6, 1)})
        leak = self.results("leak.nc", {"h2o": (0.2, 0.5, 1), "h2o,constrain=fair": (0.8, 0.9, 1)})
        found = {row["variant"]: row for row in self.rows("fairness", wish, leak)}
        fair = found["constrain=fair"]
        self.assertEqual(fair["policy"], "h2o")
        self.assertAlmostEqual(float(fair["budget 0.2"]), (-0.1 + 0.6) / 2)
        self.assertAlmostEqual(float(fair["mean"]), (0.25 + 0.2) / 2)
        self.assertAlmostEqual(float(fair["deviation"]), 0.025)
        self.assertIn("whitelist=defense", found)
        self.assertFalse(any(row["policy"] == "tova" for row in found.values()))

    def test_each_file_gives_the_loss_of_its_own_span(self):
        files = [load.open_results(self.results(f"{name}.nc", {"h2o": (score, score, 1)}))
                 for name, score in (("wish", 0.9), ("leak", 0.3))]
        lost = losses.of(files)
        np.testing.assert_allclose(lost.points("h2o")[0], [0.1, 0.7])
        self.assertRegex(lost.labels[0], "directive")
        self.assertRegex(lost.labels[1], "defense")

    def test_pareto_counts_leave_out_budgets_at_which_lambda_does_not_matter(self):
        name = "h2o,constrain=debias,debias_lambda="
        wish = self.results("wish.nc", {name + "0": (0.9, 0.9, 1), name + "0.5": (0.5, 0.5, 1),
                                        name + "1": (0.4, 0.5, 1)})
        leak = self.results("leak.nc", {name + "0": (0.1, 0.2, 1), name + "0.5": (0.4, 0.1, 1),
                                        name + "1": (0.3, 0.9, 1)})
        rows = self.rows("pareto", wish, leak)
        self.assertEqual([(row["lambda"], row["optimal"], row["of"], row["optimal_all"],
                           row["of_all"]) for row in rows],
                         [("0.0", "2", "2", "3", "3"), ("0.5", "1", "2", "2", "3"),
                          ("1.0", "1", "2", "2", "3")])
        self.assertTrue((self.out / "pareto-points.png").exists())

    def test_files_that_do_not_fit_together_are_refused(self):
        one = self.results("one.nc", {})
        other = self.file("other.nc", policies=tuple(self.RECORDS), budgets=(0.3, 0.5, 1.0))
        self.refused(3, "different budgets", one, other, "-o", self.out, "--only", "pareto")
        self.refused(3, "one results file or two", one, one, one, "-o", self.out, "--only",
                     "fairness")
        self.refused(3, "no policy with constrain=debias", self.file(), "-o", self.out, "--only",
                     "pareto")


class SpanOrderTest(PlotTest):
    def test_the_order_is_compared_with_that_at_the_largest_budget_below_one(self):
        def edit(data):
            values = np.array([[.1, .2, .3], [.3, .2, .1], [.1, .3, .2], [1, 1, 1], [.2, .2, .2]])
            data["span_retained_importance"] = (data.span_retained_importance.dims, np.broadcast_to(
                values[None, :, None], data.span_retained_importance.shape).copy())
            return data
        results = load.open_results(self.file(
            policies=("h2o",), budgets=(0.8, 0.2, 0.5, 1.0, 0.1), spans=("a", "b", "c"), edit=edit))
        values, reference = span_scores.correlations(results)
        self.assertEqual(reference, 0)
        np.testing.assert_allclose(values[0], [np.nan, -1, 0.5, np.nan, np.nan])


class NeedlesTest(PlotTest):
    def needle(self, name, length, spans=("needle",)):
        return self.file(name, prompt_len=length, spans=spans)

    def test_needles_stand_at_their_depth_and_length(self):
        files = [self.needle("a.nc", 400), self.needle("b.nc", 410),
                 self.needle("c.nc", 800, ("needle1", "x", "needle2"))]
        several = [load.open_results(path) for path in files]
        found = needles.needles(several)
        self.assertEqual([(f, s, length) for f, s, _, length in found],
                         [(0, 0, 400), (1, 0, 410), (2, 0, 800), (2, 2, 800)])

        class Options:
            budget = "0.2"
        values, lengths, depths = needles.cells(several, Options, found, "keep_rate", ["random"])
        self.assertEqual((lengths, depths), ([405, 800], [0.0, 100.0]))
        rates = [results.data.keep_rate.values[1, 0].mean(axis=0) for results in several]
        np.testing.assert_allclose(values[0], [[(rates[0][0] + rates[1][0]) / 2, np.nan],
                                               [rates[2][0], rates[2][2]]])

    def test_both_maps_are_drawn(self):
        files = [self.needle("a.nc", 400), self.needle("b.nc", 800)]
        code, out, err = self.draw(*files, "-o", self.out, "--only", "needles", "--formats", "png")
        self.assertEqual((code, err), (0, []))
        self.assertEqual([Path(path).stem for path in out], ["needles-kept", "needles-importance"])

    def test_traces_without_needles_have_none(self):
        self.refused(3, "no span whose name begins with needle", self.file(), "-o", self.out,
                     "--only", "needles")


class StatisticsTest(unittest.TestCase):
    def test_draws_are_the_hash_of_the_program(self):
        # f(0) of SplitMix64, as published.
        self.assertEqual(int(statistics._splitmix(np.zeros(1, np.uint64))[0]), 0xE220A8397B1DCDAF)
        draws = statistics.uniform(0, *np.ogrid[:50, :40], 1)
        self.assertEqual(len(np.unique(draws)), draws.size)
        self.assertTrue(abs(draws.mean() - 0.5) < 0.03 and 0 <= draws.min() < draws.max() < 1)

    def test_resampled_steps_are_blocks_of_sixteen(self):
        steps = statistics.resampled_steps(40)
        self.assertEqual(steps.shape, (1000, 40))
        self.assertTrue(np.all(np.diff(steps[:, :16], axis=1) == 1))
        self.assertTrue(np.all(np.diff(steps[:, 32:], axis=1) == 1))
        self.assertEqual((steps.min(), steps.max()), (0, 39))
        self.assertTrue(np.all(statistics.resampled_steps(3) == np.arange(3)))

    def test_the_interval_over_traces_covers_what_it_should(self):
        # Resampled means of {0, 1}: 0, 1/2 and 1, the ends with probability 1/4 each.
        mean, (low, high) = statistics.over_traces([0.0, 1.0])
        self.assertEqual((mean, low, high), (0.5, 0.0, 1.0))

    def test_spearman_of_average_ranks(self):
        np.testing.assert_array_equal(statistics.ranks(np.array([3, 1, 3, 2])), [3.5, 1, 3.5, 2])
        self.assertAlmostEqual(statistics.spearman([1, 2, 3, 4], [1, 3, 2, 4]), 0.8)
        self.assertAlmostEqual(statistics.spearman([1, 2], [9, 3]), -1)
        for x, y in (([1], [2]), ([1, 1], [1, 2]), ([1, np.nan], [1, 2])):
            self.assertTrue(np.isnan(statistics.spearman(x, y)))

    def test_the_pareto_front_has_equal_points_but_no_dominated_one(self):
        points = [[0, 1], [1, 0], [1, 1], [0, 1], [0.4, 0.4], [0.4, 0.5], [np.nan, 0]]
        self.assertEqual(statistics.pareto(points).tolist(),
                         [True, True, False, True, True, False, False])


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
        self.refused(3, "cannot draw worst_case: .*no variable outlier_count",
                     results, "-o", self.out, "--only", "worst_case")

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


SWEEP = {
    "kvsim": "sweep", "traces": 1,
    "rows": [{"preset": "snapkv", "settings": 3, "measure": measure, "over": "mean",
              "budget": budget, "best": best, "value": 0.5, "low": 0.4, "high": 0.6,
              "default": default, "gain": 0.1, "gain_low": 0.0, "gain_high": 0.2, "chosen": 0.7}
             for measure in ("retained_importance", "output_error")
             for budget, best, default in (("64", "snapkv,window=8,kernel=7", 0.4),
                                           ("0.5", "snapkv", None))]}


class DocumentTest(PlotTest):
    def document(self, content):
        path = self.folder / "document.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def test_the_json_of_theory_is_drawn(self):
        code, out, err = self.draw(self.document(THEORY), "-o", self.out, "--formats", "png")
        self.assertEqual((code, out, err), (0, [str(self.out / "theory.png")], []))

    def test_the_json_of_explain_is_drawn(self):
        code, out, err = self.draw(self.document(EXPLAIN), "-o", self.out, "--formats", "png")
        self.assertEqual((code, out, err), (0, [str(self.out / "explain.png")], []))

    def test_the_json_of_a_sweep_is_drawn(self):
        code, out, err = self.draw(self.document(SWEEP), "-o", self.out, "--formats", "png")
        self.assertEqual((code, out, err), (0, [str(self.out / "best_settings.png")], []))

    def test_the_text_of_a_prompt_is_broken_between_tokens(self):
        width = int((style.WIDTH - 2 * explain.MARGIN) / explain.CHARACTER)
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
        self.refused(3, "not a netCDF-4 file", text, "-o", self.out)
        other = self.file(edit=lambda data: data.drop_dims("step"))
        self.refused(3, "no dimension step", other, "-o", self.out)

    def test_a_file_cut_short(self):
        results = self.file()
        results.write_bytes(results.read_bytes()[:3000])
        self.refused(3, "not a netCDF-4 file", results, "-o", self.out)

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
        self.refused(2, "expected layers such as", results, "-o", self.out, "--layers", "a")
        self.refused(2, "required: -o", results)

    def test_existing_figures_are_kept_unless_overwriting_was_asked_for(self):
        arguments = (self.file(), "-o", self.out, "--only", "budget", "--formats", "png")
        self.assertEqual(self.draw(*arguments)[0], 0)
        self.refused(2, "budget.png: exists; --overwrite", *arguments)
        self.assertEqual(self.draw(*arguments, "--overwrite")[0], 0)

    def test_a_folder_in_the_place_of_a_figure_is_never_replaced(self):
        (self.out / "budget.png").mkdir(parents=True)
        self.refused(2, "not a regular file", self.file(), "-o", self.out, "--overwrite")

    def test_an_output_folder_that_cannot_be_made(self):
        results = self.file()
        code, _, err = self.draw(results, "-o", results)
        self.assertNotEqual(code, 0)
        self.assertEqual(len(err), 1, err)


class PartsTest(PlotTest):
    def test_the_nearest_budget_is_taken(self):
        results = load.open_results(self.file(budgets=(0.9, 0.4, 0.1)))
        for wanted, index in (("0.5", 1), ("85%", 0), ("20", 2), ("0.1", 2), ("1000", 0)):
            self.assertEqual(results.nearest_budget(wanted), index, wanted)

    def test_counts_are_named_as_they_were_typed(self):
        results = load.open_results(self.file(budgets=(0.16, 0.64), labels=("64", "256")))
        self.assertEqual(results.budget_text(1), "256 tokens (ratio 0.64)")
        self.assertEqual(results.nearest_budget("64"), 0)
        self.assertTrue(results.budgets_are_counts)

    def test_a_subtitle_names_model_lengths_and_trace(self):
        self.assertEqual(load.open_results(self.file()).subtitle,
                         "example/tiny-360M, n = 400 prompt tokens, T = 20 later steps, "
                         "trace example.h5")

    def test_no_two_lines_of_one_figure_look_alike(self):
        for count in (1, 9, 10, 11, 19, 21, 30, 31):
            policies = ("full", *(f"p{i}" for i in range(count)))
            results = load.open_results(self.file(f"{count}.nc", policies=policies, spans=(),
                                                  layers=(0,), budgets=(0.5,), steps=2))
            groups = style.policy_pages(results)
            self.assertEqual([one for group in groups for one in group if one != "full"],
                             list(policies[1:]))
            for group in groups:
                looks = {str(style.policy_style(results, policy)) for policy in group}
                self.assertEqual(len(looks), len(group))

    def test_the_running_median_ignores_what_is_undefined(self):
        line = np.full(40, 0.8)
        line[[3, 20]] = (0.0, np.nan)
        self.assertTrue(np.all(retained_importance.running_median(line) == 0.8))

    def test_the_summary_over_layers_leaves_out_undefined_values(self):
        values = np.array([[0.2, np.nan, 0.4], [np.nan] * 3])
        np.testing.assert_allclose(worst_case.worst(values), [0.2, np.nan])
        np.testing.assert_allclose(worst_case.mean(values), [0.3, np.nan])
        self.assertEqual([worst_case.share(v) for v in (0.204, 0.9949, 0.999, 1, 0, np.nan)],
                         [".20", ".99", "1.0", "1.0", ".00", "–"])


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
