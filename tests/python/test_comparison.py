"""`kvsim compare` on made-up results whose differences are known."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "plots")]
import fake_results  # noqa: E402
import kvsim  # noqa: E402
from kvsim import comparison_command, ranking  # noqa: E402
from kvsim.errors import DataError, UsageError  # noqa: E402
from kvsim.plain import near  # noqa: E402
from kvsim.table_text import table_text  # noqa: E402


class CompareTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())

    def file(self, name, seed=0, factor=1.5, held=None, shares=None):
        """Two policies whose stream errors differ by `factor` at every step."""
        def edit(data):
            data.attrs.update(trace_digest=name, trace=f"{name}.h5", kvsim_version="0")
            data["stream_error"][0] = factor * data["stream_error"][1]
            data["stream_error_rms"][0] = factor * data["stream_error_rms"][1]
            if held is not None:
                data["held_of_budget"] = (("policy", "budget"), np.array(held, float))
                data["unranked"] = (("policy", "budget"), np.zeros((2, 2), np.uint8))
            if shares is not None:
                data["held_share"] = (("policy", "budget"), np.array(shares, float))
            return data

        return fake_results.write(self.folder / f"{name}.nc", ["h2o", "snapkv"], [0.2, 0.5], seed=seed,
                                  edit=edit)

    def test_over_the_steps_of_one_trace_ratios_are_paired(self):
        table = kvsim.compare("h2o", "snapkv", self.file("one"), metrics="stream_error")
        self.assertEqual(table.budget.tolist(), ["0.2", "0.5"])
        for column in ("value", "low", "high"):
            np.testing.assert_allclose(table[column], 1.5, rtol=1e-6)
        self.assertEqual(table.over.unique().tolist(), ["steps"])
        self.assertTrue(table.differs.all())
        self.assertIn("2 comparisons over", table.attrs["sentences"][-1])

    def test_over_traces_the_interval_is_students_on_logarithms(self):
        from kvsim.plots import statistics

        factors = [1.1, 1.3, 1.2, 1.25]
        files = [self.file(f"t{k}", seed=k, factor=one) for k, one in enumerate(factors)]
        table = kvsim.compare("h2o", "snapkv", files, metrics="stream_error", budgets="0.2")
        mean, (low, high) = statistics.over_traces(factors, "log")
        np.testing.assert_allclose(table[["value", "low", "high"]].values, [[mean, low, high]],
                                   rtol=1e-5)
        self.assertEqual(table["count"].tolist(), [4])
        self.assertIn("4 traces", table.attrs["sentences"][-1])

    def test_traces_that_differ_are_said_to(self):
        def unlike(data):
            data.attrs.update(trace_digest="b", trace="b.h5", model="other", num_layers=30)
            return data

        other = fake_results.write(self.folder / "b.nc", ["h2o", "snapkv"], [0.2, 0.5], edit=unlike,
                                   prompt_len=800, layers=range(4))
        said = kvsim.compare("h2o", "snapkv", [self.file("a"), other]).attrs["sentences"]
        self.assertIn("The traces differ: 2 models, prompts of 400 to 800 tokens, 4 of 30 layers and 8 of 8 layers; "
                      "a mean over them is of all these.", said)
        said = kvsim.compare("h2o", "snapkv", [self.file("a"), self.file("c")]).attrs["sentences"]
        self.assertNotIn("differ:", " ".join(said))

    def test_a_policy_with_a_setting_is_nearer_than_another_name(self):
        self.assertEqual(near("duo", ["d2o", "duo,table=t"]), " (did you mean duo,table=t?)")

    def test_what_is_not_held_alike_is_said(self):
        table = kvsim.compare("h2o", "snapkv", self.file("one", held=[[1.25, 1], [1, 1]]),
                              metrics="stream_error")
        self.assertEqual(table.held.tolist(), [1.25, 1])
        said = " ".join(table.attrs["sentences"])
        self.assertRegex(said, "1.25 times at 0.2; such budgets are no")
        self.assertIn("At 0.2 they cannot be compared at equal bytes", said)
        marked = comparison_command.marks(table)
        self.assertEqual({what for (row, _), what in marked.items() if row == 0}, {"more"})
        self.assertIn("best", {what for (row, _), what in marked.items() if row == 1})

    def test_what_is_not_held_alike_is_compared_at_equal_bytes(self):
        # h2o holds 0.15 and 0.6 of the bytes: 0.3, which snapkv holds at 0.5, is halfway in logarithms.
        files = [self.file(name, seed, held=[[0.75, 2], [1, 1]], shares=[[0.15, 0.6], [0.2, 0.3]])
                 for seed, name in enumerate(("one", "two", "three"))]
        table = kvsim.compare("h2o", "snapkv", files, metrics="stream_error", budgets=["50%"])
        self.assertEqual(table.budget.tolist(), ["0.5"])
        errors = np.array([kvsim.open_results(one).stream_error_rms.values for one in files])
        wanted = np.exp(np.mean(np.log(np.sqrt(errors[:, 0, 0] * errors[:, 0, 1]) / errors[:, 1, 1])))
        self.assertAlmostEqual(table.equal_bytes[0] / wanted, 1, places=6)
        self.assertTrue(table.equal_bytes_low[0] < wanted < table.equal_bytes_high[0])
        self.assertRegex(" ".join(table.attrs["sentences"]), "Where h2o holds the bytes of snapkv, between")

    def test_layers_are_those_of_every_trace(self):
        files = [self.file("one"), self.file("two")]
        other = kvsim.open_results(files[1]).load().isel(layer=[0])
        with self.assertRaisesRegex(DataError, "two.h5: stream_error is of 1 layer, that of one.h5 of"):
            kvsim.compare("h2o", "snapkv", [files[0], other], metrics="stream_error")

    def test_shares_are_compared_by_difference(self):
        table = kvsim.compare("h2o", "snapkv", self.file("one"), metrics="retained_importance")
        self.assertEqual(table.by.unique().tolist(), ["difference"])
        np.testing.assert_allclose(table.value, table.a - table.b, rtol=1e-6)

    def test_odd_questions_are_one_line(self):
        data = self.file("one")
        for wanted, said in ((("h2o", "h2o"), "twice"), (("h2o", "snapk"), "did you mean snapkv")):
            with self.assertRaisesRegex((DataError, UsageError), said):
                kvsim.compare(*wanted, data)
        with self.assertRaisesRegex(DataError, "no variable nothing"):
            kvsim.compare("h2o", "snapkv", data, metrics="nothing")
        with self.assertRaisesRegex(DataError, "has no steps"):
            kvsim.compare("h2o", "snapkv", data, metrics="stream_error_rms")
        with self.assertRaisesRegex(DataError, "no budget 0.7"):
            kvsim.compare("h2o", "snapkv", data, budgets=0.7)

    def test_the_table_has_four_forms(self):
        table = kvsim.compare("h2o", "snapkv", self.file("one"), metrics="stream_error")
        shown = table[["measure", "budget", "value"]]
        self.assertIn(r"| stream\_error | 0.2 | 1.5 |", table_text(shown, "md"))
        self.assertIn(r"stream\_error & 0.2 & 1.5 \\", table_text(shown, "tex"))
        self.assertTrue(table_text(shown, "csv").startswith("measure,budget,value\n"))
        self.assertEqual(len(set(map(len, table_text(shown).splitlines()))), 1)

    def test_the_command_prints_table_and_sentences(self):
        self.file("one")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = comparison_command.main(["h2o", "snapkv", str(self.folder / "one.nc"), "--metric",
                                      "stream_error", "--table", "tex"])
        self.assertEqual(status, 0)
        self.assertIn(r"\bottomrule", out.getvalue())
        self.assertIn("\nThe stream error of h2o over that of snapkv is", out.getvalue())
        self.assertIn(r"\caption{Paired differences of A, h2o, and B, snapkv", out.getvalue())
        self.assertIn(r"& 0.21 & \textbf{0.14} &", out.getvalue())

    def test_measures_have_a_scale(self):
        self.assertEqual([ranking.scale_of(one) for one in
                          ("kl_divergence", "retained_importance", "nll_difference")],
                         ["log", "share", "plain"])
        self.assertEqual(ranking.scale_of("outlier_count", "count"), "count")


class LossesTest(unittest.TestCase):
    def test_losses_have_a_table_as_results_have(self):
        import loop_file
        from kvsim.program import run

        rng = np.random.default_rng(0)
        losses = {name: rng.gamma(1, mean, (2, 60)) for name, mean in
                  (("snapkv", 0.2), ("h2o", 0.1), ("duo", 0.01))}
        cells = {"held_of_budget": np.array([[1, 1], [1, 1], [4, 1.6]]),
                 "unranked": np.array([[0, 0], [0, 0], [4, 4]], np.uint8)}
        path = loop_file.write(Path(tempfile.mkdtemp()) / "loop.nc", losses, range(400, 460), "d",
                               held=cells)
        lines = run(["rank", path]).splitlines()
        self.assertRegex(lines[3], r"^h2o +0\.2 +0\.1\d\d\*")
        self.assertRegex(lines[7], r"^duo +0\.2 +0\.01\d>")
        self.assertIn("  duo 4 times at 0.2, 1.6 times at 0.5", lines)
        self.assertTrue(lines[-1].startswith("on this text use h2o at 0.2, 0.5"), lines[-1])


if __name__ == "__main__":
    unittest.main()
