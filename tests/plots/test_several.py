"""Tests of figures over several results files, and of their statistics; see test_plots.py."""

import csv
import json
import unittest
from types import SimpleNamespace

import numpy as np

from test_plots import THEORY, PlotTest  # says so, and stops, where modules are missing
from kvsim.plots import load, statistics
from kvsim.plots.figures import traces


class SeveralTracesTest(PlotTest):
    """Figures that compare results files."""

    def files(self, count=2, **options):
        return [self.file(f"{name}.nc", seed=seed, edit=lambda data, name=name: data.assign_attrs(
            trace=f"/data/{name}.h5"), **options)
            for seed, name in enumerate("abcdefghijkl"[:count])]

    def test_they_stand_beside_the_folders_of_the_files(self):
        code, out, err = self.planned(*self.files(), "-o", self.out, "--formats", "png")
        self.assertEqual((code, err), (0, []))
        together = {path.stem for path in self.out.iterdir() if path.is_file()}
        self.assertEqual(together, {"traces"})
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
            stream = load.open_results(files[k]).data.stream_error.values[1, 0]
            expected["stream error, rms over steps"] = np.sqrt(np.mean(stream ** 2))
            expected["stream error, worst step"] = stream.max()
            for measure, value in expected.items():
                self.assertAlmostEqual(float(rows["random", measure][name]), value)
        row = rows["random", "mean over layers and steps"]
        mean = np.mean([float(row[name]) for name in "abc"])
        self.assertAlmostEqual(float(row["mean"]), mean)
        self.assertTrue(float(row["low"]) <= mean <= float(row["high"]))
        self.assertNotIn(("full", "mean over layers and steps"), rows)

    def test_what_differs_in_layers_or_length_is_pooled_only_when_told(self):
        one = self.file("one.nc")
        for k, (other, said) in enumerate((
                ({"layers": range(2, 3)}, "layers"), ({"prompt_len": 800}, "prompt tokens"),
                ({"steps": 90}, "later steps"))):
            two = self.file(f"two{k}.nc", **other)
            self.refused(3, f"would mix what differs.*{said}.*--pool", one, two, "-o", self.out,
                         "--only", "traces")
            code, out, _ = self.draw(one, two, "-o", self.out / str(k), "--only", "traces", "--pool",
                                     "--formats", "csv", "--budget", "0.2")
            self.assertEqual((code, len(out)), (0, 1))

    def test_one_trace_has_an_interval_over_blocks_of_steps(self):
        results = load.open_results(self.file(steps=40))
        class Options:
            budget = "0.2"
        columns = traces.COLUMNS
        values, means, (low, high) = traces.measured([results], Options, columns, ["random"])
        self.assertEqual(values.shape, (len(columns), 1, 1))
        for k, column in enumerate(columns):
            if "worst" not in column.what:
                self.assertTrue(low[k, 0] < means[k, 0] < high[k, 0], column)

    def test_steps_that_were_not_evaluated_do_not_matter(self):
        def thinned(data):
            data["stream_error"][..., ::2] = np.nan
            return data
        class Options:
            budget = "0.2"
        results = load.open_results(self.file(steps=40, edit=thinned))
        values, _, (low, high) = traces.measured([results], Options, traces.COLUMNS[:2], ["random"])
        stream = results.data.stream_error.values[1, 0, 1::2]
        np.testing.assert_allclose(values[:, 0, 0], [np.sqrt(np.mean(stream ** 2)), stream.max()])
        self.assertTrue(low[0, 0] < values[0, 0, 0] < high[0, 0])

    def test_the_metrics_asked_for_are_drawn(self):
        several = [load.open_results(path) for path in self.files()]
        plain = [self.file(f"{seed}.nc", seed=seed, residual=False) for seed in (0, 1)]
        for files, metric, titles in (
                (several, None, ["stream error,\nrms over steps", "stream error,\nworst step",
                                 "retained importance,\nmean over layers and steps",
                                 "retained importance,\nsteps and layers below 0.5"]),
                (several, ["residual_error", "stream_error"],
                 ["residual error,\nmean over layers and steps",
                  "residual error,\nworst step, mean over layers",
                  "stream error,\nrms over steps", "stream error,\nworst step"]),
                (several, ["retained_importance"],
                 ["retained importance,\nworst step of all layers",
                  "retained importance,\nworst step, mean over layers",
                  "retained importance,\nmean over layers and steps",
                  "retained importance,\nsteps and layers below 0.5"]),
                ([load.open_results(path) for path in plain], None,
                 ["output error,\nmean over layers and steps",
                  "output error,\nworst step, mean over layers",
                  "retained importance,\nmean over layers and steps",
                  "retained importance,\nsteps and layers below 0.5"])):
            pages = traces.pages(files, SimpleNamespace(metric=metric, budget="0.2"))
            self.assertEqual([ax.get_title() for ax in pages["traces"]().axes], titles)
        self.refused(3, "cannot draw traces: .*no variable stream_error_rms", *plain, "-o",
                     self.out, "--only", "traces", "--metric", "stream_error")

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
        code, _, err = self.draw(*files, "-o", self.out, "--only", "traces", "--formats",
                                 "png")
        self.assertEqual((code, err), (0, []))


class StatisticsTest(unittest.TestCase):
    def test_intervals_stay_where_numbers_can_be(self):
        mean, (low, high) = statistics.over_traces([0.01, 0.02, 0.9], "log")
        self.assertAlmostEqual(float(mean), float(np.cbrt(0.01 * 0.02 * 0.9)))
        self.assertTrue(0 < low < mean < high)
        self.assertEqual(np.ravel(statistics.over_traces([0, 0], "log")[1]).tolist(), [0, 0])
        for shares in ([0.99, 1, 0.7], [0, 0, 0.3], [1, 1, 1]):
            mean, (low, high) = statistics.over_traces(shares, "share")
            self.assertAlmostEqual(float(mean), np.mean(shares))
            self.assertTrue(0 <= low <= mean <= high <= 1, shares)
        self.assertGreaterEqual(float(statistics.over_traces([0, 1, 40], "count")[1][0]), 0)

    def test_the_interval_over_traces_is_students(self):
        # Deviation 1/sqrt(2), error 1/2, and 12.706 the quantile of one degree of freedom.
        mean, (low, high) = statistics.over_traces([0.0, 1.0])
        np.testing.assert_allclose((mean, low, high), (0.5, 0.5 - 6.3531, 0.5 + 6.3531), atol=1e-4)
        mean, (low, high) = statistics.over_traces([[3.0], [4.0]])
        self.assertEqual(mean.tolist(), [3, 4])
        self.assertTrue(np.isnan([low, high]).all())   # one trace says nothing of others
        self.assertEqual(np.ravel(statistics.over_traces([2.0] * 5)[1]).tolist(), [2, 2])

    def test_how_likely_a_difference_is_by_chance(self):
        # 1, 2, 3: mean 2, error 1/sqrt(3), t 3.4641 with two degrees: 0.0742.
        self.assertAlmostEqual(statistics.chance([1, 2, 3]), 0.07418, places=5)
        self.assertEqual(statistics.chance([0, 0, 0]), 1)
        self.assertEqual(statistics.chance([1, 1, 1]), 0)
        # Holm: 0.01 against 0.05/4, 0.015 against 0.05/3, 0.03 against 0.05/2, which stops it.
        self.assertEqual(statistics.holm([0.03, 0.01, 0.04, 0.015]).tolist(),
                         [False, True, False, True])

    def test_spearman_of_average_ranks(self):
        # Ranks of x: 3.5, 1, 3.5, 2, of which and of 1 to 4 Pearson is by hand -1 / sqrt(22.5).
        self.assertAlmostEqual(statistics.spearman([3, 1, 3, 2], [1, 2, 3, 4]), -(22.5 ** -0.5))
        self.assertAlmostEqual(statistics.spearman([1, 2, 3, 4], [1, 3, 2, 4]), 0.8)
        self.assertAlmostEqual(statistics.spearman([1, 2], [9, 3]), -1)
        for x, y in (([1], [2]), ([1, 1], [1, 2]), ([1, np.nan], [1, 2])):
            self.assertTrue(np.isnan(statistics.spearman(x, y)))


if __name__ == "__main__":
    unittest.main()
