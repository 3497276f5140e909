"""Tests of the table of fragility over many texts; see test_plots.py."""

import csv
import tempfile
import unittest
from pathlib import Path

import test_plots  # noqa: F401  says so, and stops, where modules are missing
import numpy as np
import xarray
from kvsim.plots.study import fragility

STEP = "defensive step"


class FragilityTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def results(self, name):
        """One form of selection, two layers and four steps; results order a record's keys anew."""
        step = fragility.CHOICES[STEP].split(",")
        policies = ["importance", ",".join([step[0], *reversed(step[1:])])]
        retained = np.full((2, len(fragility.BUDGETS), 2, 4), 0.75)
        retained[0, :, 0, :2] = 0.25   # of the mean: 2 of 8 pairs
        shape = retained.shape[:2]
        xarray.Dataset(
            {"retained_importance": (("policy", "budget", "layer", "step"), retained),
             "stream_error": (("policy", "budget", "step"), np.ones((*shape, 4))),
             "stream_error_rms": (("policy", "budget"), np.array([[0.2], [0.1]]) * np.ones(shape))},
            {"policy": policies, "budget": list(fragility.BUDGETS)}).to_netcdf(
                self.folder / name, engine="h5netcdf")
        return self.folder / name

    def test_results_become_rows_whatever_the_order_of_a_records_keys(self):
        rows = list(fragility.rows([self.results("code_704_61.aggregation.nc")]))
        self.assertEqual(len(rows), 2 * len(fragility.BUDGETS))
        self.assertEqual(rows[0], ["code", "704", "61", "equal budgets", "mean", 0.5, 4, "0.2", "0.25",
                                   "0.25"])
        self.assertEqual([row[-1] for row in rows if row[4] == STEP], ["0"] * len(fragility.BUDGETS))
        with self.assertRaises(SystemExit):
            list(fragility.rows([self.folder / "sample.nc"]))

    def test_the_table_pairs_the_step_with_the_mean_by_text(self):
        (self.folder / "reproduction").mkdir()
        # Stream errors 0.1 and 0.1 against 0.2 and 0.4; shares below one half 10 and 20 % against 30 and 50.
        found = {"mean": ((0.2, 0.1, 0.3), (0.4, 0.2, 0.5)), STEP: ((0.1, 0.3, 0.1), (0.1, 0.3, 0.2))}
        with (self.folder / "reproduction/fragility.csv").open("w", newline="") as file:
            csv.writer(file).writerows([fragility.HEADER, *(
                [text.kind, text.prompt_tokens, text.seed, "heads compete", choice, 0.5, 128, *one]
                for choice, both in found.items() for text, one in zip(fragility.TEXTS, both))])
        header, rows = fragility.table(self.folder)
        self.assertEqual(len(rows), 1)
        cells = dict(zip(header, rows[0]))
        self.assertEqual(cells["stream error"], "0.300, -, 0.100")
        # Ratios 1/2 and 1/4; Student's t of one degree is 12.706, the deviation over sqrt 2 is ln(2) / 2.
        reach = np.exp(12.7062047 * np.log(2) / 2)
        self.assertEqual(cells["defensive / mean"],
                         f"0.35 [{8 ** -0.5 / reach:.2f}, {8 ** -0.5 * reach:.2f}]")
        self.assertEqual(cells["below 0.5, %"], "40.0, -, 15.0")
        self.assertTrue(cells["defensive − mean"].startswith("−25.0 [−88.5, +38.5]"), cells)
        self.assertEqual(cells["worst"], "0.150, -, 0.300")


if __name__ == "__main__":
    unittest.main()
