"""Tests of the figures of span losses and of the order of spans; see tests/plots/test_plots.py."""

import csv
import json
import unittest

import findings.plot  # noqa: F401  (adds the figures of studies/figures)
import loop_file
import numpy as np
from findings import effects
from kvsim.plots import load
from kvsim.plots.figures import losses, span_order
import test_widths
from test_plots import ALL, PlotTest


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
               "tova": {**PLAIN, "window": "1"}, "random": {**PLAIN, "indicator": "random"}}
    BUDGETS = (0.2, 0.5, 1.0)

    def results(self, name, scores, stream=None):
        """`scores`: {record: class score by budget}; the other records have 1 everywhere.
        `stream`: the same of stream errors; the others have 0."""
        def edit(data):
            values = np.ones(data.span_retained_importance.shape)
            for record, row in scores.items():
                values[list(self.RECORDS).index(record)] = np.array(row)[:, None, None]
            data["span_retained_importance"] = (data.span_retained_importance.dims, values)
            errors = [(stream or {}).get(record, (0, 0, 0)) for record in self.RECORDS]
            data["stream_error_rms"] = (("policy", "budget"), np.array(errors, float))
            return with_config(self.RECORDS)(data.assign_attrs(trace_digest=name))
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

    def test_a_constraint_that_wrecks_the_cache_is_marked_whatever_it_gains(self):
        # Above twice 0.1 and above random's 0.25 at budget 0.2; above random, but not twice 0.05,
        # at 0.5. The whitelist is twice and more, but below random.
        stream = {"h2o": (0.1, 0.05, 0), "h2o,constrain=fair": (0.3, 0.09, 0),
                  "h2o,whitelist=defense": (0.24, 0.2, 0), "random": (0.25, 0.08, 0),
                  "h2o,constrain=debias,debias_lambda=1": (0.3, 0.11, 0)}
        one = self.results("one.nc", {"h2o": (0.4, 0.6, 1)}, stream)
        found = {row["variant"]: row for row in self.rows("fairness", one)}
        fair = found["constrain=fair"]
        self.assertGreater(float(fair["budget 0.2"]), 0)
        self.assertEqual([fair[f"texts wrecked, budget {b}"] for b in ("0.2", "0.5", "1")],
                         ["1", "0", "0"])
        self.assertEqual((fair["wrecked"], float(fair["stream error, budget 0.2"])), ("1", 0.3))
        whitelist = found["whitelist=defense"]
        self.assertEqual([whitelist[f"texts wrecked, budget {b}"] for b in ("0.2", "0.5")],
                         ["0", "1"])
        rows = {row["lambda"]: row for row in self.rows("pareto", one)}
        self.assertEqual([rows[value]["wrecked"] for value in ("0.0", "0.5", "1.0")],
                         ["0", "0", "2"])
        self.assertEqual((rows["1.0"]["optimal"], rows["1.0"]["optimal_unwrecked"]), ("0", "0"))
        column = "stream error, geometric mean over measured budgets below 1"
        self.assertAlmostEqual(float(rows["1.0"][column]), (0.3 * 0.11) ** 0.5)
        self.draw(one, "-o", self.out, "--only", "fairness", "--formats", "csv", "--overwrite",
                  "--policy", "h2o", "--policy", "h2o,whitelist=defense")
        with (self.out / "fairness.csv").open() as file:   # without random the factor alone decides
            self.assertEqual(next(csv.DictReader(file))["wrecked"], "2")

    def loop(self, name, trace, losses_of, answer=None):
        """A file of a closed loop: {record: mean KL divergence at budgets 0.2 and 0.5}, and
        `answer` more than that on the step of the answer, if it is told from the request."""
        beside = np.array([-0.01, 0.01 if answer is None else answer])
        losses = {record: np.array(means)[:, None] + beside for record, means in losses_of.items()}
        return loop_file.write(self.folder / name, losses, (8, 9), trace, trace="/data/example.h5",
                               answer_begin=None if answer is None else 10)

    def test_a_closed_loop_given_beside_its_trace_shows_what_the_model_lost(self):
        wish, leak = (self.results(name, {"h2o": (0.4, 0.6, 1)}) for name in ("wish.nc", "leak.nc"))
        loops = [self.loop(f"{name}.loop.nc", f"{name}.nc",
                           {"h2o": (0.1, 0.2), "h2o,constrain=fair": (fair, 0.3)}, answer)
                 for name, fair, answer in (("wish", 0.5, None), ("leak", 0.7, 0.05))]
        found = {row["variant"]: row for row in self.rows("fairness", wish, leak, *loops)}
        leaked = "KL divergence, leak (nats), budget {}".format
        column = "KL divergence, directive (nats), budget {}".format
        self.assertAlmostEqual(float(found["constrain=fair"][column("0.2")]), 0.5)
        self.assertAlmostEqual(float(found["constrain=fair"][leaked("0.2")]), 0.75)
        self.assertAlmostEqual(float(found["constrain=fair"][column("0.5")]), 0.3)
        self.assertEqual(found["constrain=fair"][column("1")], "nan")       # it was not run there,
        self.assertEqual(found["whitelist=defense"][column("0.2")], "nan")  # nor with a whitelist
        self.refused(3, "closed loop of a trace .* that none of the results files is of", wish,
                     loops[1], "-o", self.out, "--only", "fairness")

    def test_texts_without_a_closed_loop_leave_the_others_their_mean(self):
        files = [self.results(f"{name}{k}.nc", {"h2o": (0.4, 0.6, 1)}) for k in range(3)
                 for name in ("wish", "leak")]
        loops = [self.loop(f"{k}.loop.nc", f"{name}.nc", {"h2o,constrain=fair": (loss, 0.2)})
                 for k, (name, loss) in enumerate((("wish0", 0.3), ("wish2", 0.5)))]
        found = {row["variant"]: row for row in self.rows("fairness", *files, *loops)}
        column = "KL divergence, directive (nats), budget {}".format
        self.assertAlmostEqual(float(found["constrain=fair"][column("0.2")]), (0.3 * 0.5) ** 0.5)
        self.assertEqual(found["whitelist=defense"][column("0.2")], "nan")
        lost = losses.of(load.join_loops([load.open_results(one) for one in (*files, *loops)]))
        self.assertTrue(lost.wreck_rule.endswith("; closed loops of 2 of the texts"))

    def test_each_file_gives_the_loss_of_its_own_span(self):
        files = [load.open_results(self.results(f"{name}.nc", {"h2o": (score, score, 1)}))
                 for name, score in (("wish", 0.9), ("leak", 0.3))]
        lost = losses.of(files)
        np.testing.assert_allclose(lost.points("h2o").isel(text=0, budget=0), [0.1, 0.7])
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

    def test_several_texts_give_means_and_intervals_over_them(self):
        name = "h2o,constrain=debias,debias_lambda="
        files = []
        for k, fair in enumerate((0.5, 0.7, 0.9)):   # gains 0.05, 0.15, 0.25 at budget 0.2
            dominated = {name + "0.5": (0.4, 0.9, 1), name + "1": (0.3, 0.8, 1)} if k else {}
            base = {"h2o": (0.4, 0.6, 1), **dominated}
            files += [self.results(f"wish{k}.nc", {**base, "h2o,constrain=fair": (fair, 0.6, 1)}),
                      self.results(f"leak{k}.nc", {**base, "h2o,constrain=fair": (0.4, 0.6, 1)})]
        found = {row["variant"]: row for row in self.rows("fairness", *files)}
        fair = found["constrain=fair"]
        self.assertAlmostEqual(float(fair["budget 0.2"]), 0.15)
        self.assertAlmostEqual(float(fair["mean"]), 0.075)
        # Gains of the texts are 0.025, 0.075 and 0.125; Student's t of two degrees is 4.3027.
        reach = 4.3027 * 0.05 / np.sqrt(3)
        self.assertAlmostEqual(float(fair["low"]), 0.075 - reach, places=4)
        self.assertAlmostEqual(float(fair["high"]), 0.075 + reach, places=4)
        # λ matters in two texts only, and there 0 dominates: three texts x three budgets, of which
        # 2 x 2 count.
        rows = {row["lambda"]: row for row in self.rows("pareto", *files)}
        self.assertEqual([(row["optimal"], row["of"], row["optimal_all"], row["of_all"],
                           row["share"]) for row in rows.values()],
                         [("4", "4", "9", "9", "1.0"), ("0", "4", "5", "9", "0.0"),
                          ("0", "4", "5", "9", "0.0")])

    def test_files_that_do_not_fit_together_are_refused(self):
        one = self.results("one.nc", {})
        other = self.file("other.nc", policies=tuple(self.RECORDS), budgets=(0.3, 0.5, 1.0))
        self.refused(3, "different budgets", one, other, "-o", self.out, "--only", "pareto")
        self.refused(3, "one results file, or two per text", one, one, one, "-o", self.out,
                     "--only", "fairness")
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
        values, reference = span_order.correlations(results)
        self.assertEqual(self.draw(results.path, "-o", self.out, "--only", "span_order",
                                   "--formats", "png"),
                         (0, [str(self.out / "span_order.png")], []))
        self.assertEqual(reference, 0.8)
        np.testing.assert_allclose(values.sel(policy="h2o"), [np.nan, -1, 0.5, np.nan, np.nan])

    def test_an_order_of_two_spans_is_left_out_and_says_why(self):
        code, out, err = self.draw(self.file(), "-o", self.out, "--formats", "png")
        self.assertEqual((code, len(err)), (0, 1))
        self.assertIn("span_order left out: the order of 2 labelled spans is noise", err[0])
        self.assertNotIn(str(self.out / "span_order.png"), out)


class WidthTest(test_widths.WidthTest):
    FIGURES = ALL | {"bias_index", "keep_rate_layers", "keep_rate_ratios", "span_order", "span_scores"}


class StatisticsTest(unittest.TestCase):
    def test_an_effect_needs_an_interval_without_1_and_a_size(self):
        self.assertEqual(effects.effect(np.log([0.8, 0.81, 0.79])), -1)
        self.assertEqual(effects.effect(np.log([1.3, 1.31, 1.29])), 1)
        self.assertEqual(effects.effect(np.log([1.02, 1.021, 1.019])), 0)   # without 1, but small
        self.assertIsNone(effects.effect(np.log([0.5, 1.1, 0.9])))

    def test_the_pareto_front_has_equal_points_but_no_dominated_one(self):
        points = [[0, 1], [1, 0], [1, 1], [0, 1], [0.4, 0.4], [0.4, 0.5], [np.nan, 0]]
        self.assertEqual(losses.front(points).tolist(),
                         [True, True, False, True, True, False, False])


if __name__ == "__main__":
    unittest.main()
