"""Tests of the tables made of replays alone over many texts; see test_plots.py."""

import csv
import tempfile
import unittest
from pathlib import Path

import numpy as np
import xarray
from findings import long_tables, plan, replays

STEP = replays.CHOICES["defensive step"]
COMPETING = replays.FORMS["heads compete"]


def turned(record):
    """The same record with its settings in another order, as results name it."""
    first, *others = record.split(",")
    return ",".join([first, *reversed(others)])


class ReplaysTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "reproduction").mkdir()

    def results(self, name):
        """Two policies, two layers and four steps."""
        retained = np.full((2, 1, 2, 4), 0.75)
        retained[0, :, 0, :2] = 0.25   # of the mean: 2 of 8 pairs
        xarray.Dataset(
            {"retained_importance": (("policy", "budget", "layer", "step"), retained),
             "output_error": (("policy", "budget", "layer", "step"), retained / 3),
             "stream_error": (("policy", "budget", "step"), np.ones((2, 1, 4))),
             "stream_error_rms": (("policy", "budget"), np.array([[0.2], [0.1]]))},
            {"policy": ["importance", turned(STEP)], "budget": [0.5]}).to_netcdf(
                self.folder / name, engine="h5netcdf")
        return self.folder / name

    def table(self, group, found, texts, column):
        """replays.csv: {policy: numbers by text} of one column at budget 0.5."""
        with (self.folder / "reproduction/replays.csv").open("w", newline="") as file:
            rows = csv.DictWriter(file, replays.HEADER + replays.MEASURES)
            rows.writeheader()
            for policy, values in found.items():
                for text, one in zip(texts, values):
                    rows.writerow({"text": text.kind, "prompt_tokens": text.prompt_tokens,
                                   "seed": text.seed, "group": group, "policy": policy, "budget": 0.5}
                                  | dict(zip(column, one)))

    def test_results_become_rows(self):
        rows = list(replays.rows([self.results("code_704_61.aggregation.nc"),
                                  self.results("code_704_61.other.nc")]))
        self.assertEqual(len(rows), 2)
        self.assertEqual(rows[0], ["code", "704", "61", "aggregation", 2, 4, "importance", "0.5", "0.2",
                                   "0.20833", "0.625", "0.5", "0.25", "0.25", "", "", "", ""])
        self.assertEqual(rows[1][8:14], ["0.1", "0.25", "0.75", "0.75", "0.75", "0"])
        with self.assertRaises(SystemExit):
            list(replays.rows([self.folder / "sample.nc"]))

    def test_the_step_is_paired_with_the_mean_by_text_whatever_the_order_of_its_settings(self):
        # Stream errors 0.1 and 0.1 against 0.2 and 0.4; shares below one half 10 and 20 % against 30 and 50.
        self.table("aggregation", {
            "importance" + COMPETING: ((0.2, 0.3, 0.1), (0.4, 0.5, 0.2)),
            turned(STEP + COMPETING): ((0.1, 0.1, 0.3), (0.1, 0.2, 0.3))},
            plan.UNSEEN, ("stream_error", "outliers", "worst"))
        header, *rows = long_tables.fragility(self.folder)
        cells = {(row["measure"], row["of"]): row for row in (dict(zip(header, one)) for one in rows)}
        self.assertEqual({row["prompt_tokens"] for row in cells.values()}, {"700"})   # no other text ran
        self.assertEqual([cells[long_tables.STEP, of]["mean"] for of in ("mean", "defensive step")], ["0.3", "0.1"])
        # Ratios 1/2 and 1/4; Student's t of one degree is 12.706, the deviation over sqrt 2 is ln(2) / 2.
        reach = np.exp(12.7062047 * np.log(2) / 2)
        changed = cells[long_tables.STEP, long_tables.CHANGED]
        self.assertEqual([changed[one] for one in ("mean", "low", "high", "told")],
                         [*(f"{8 ** -0.5 * factor:.4g}" for factor in (1, 1 / reach, reach)), ""])
        self.assertEqual([cells[long_tables.OUTLIERS, of]["mean"] for of in ("mean", "defensive step")], ["40", "15"])
        changed = cells[long_tables.OUTLIERS, long_tables.CHANGED]
        self.assertEqual([changed[one] for one in ("mean", "low", "high", "told")], ["-25", "-88.53", "38.53", ""])
        self.assertEqual(cells["worst retained importance", "defensive step"]["mean"], "0.3")
        drawn = {text.get_text() for text in long_tables.draw_fragility([*cells.values()]).axes[0].texts}
        self.assertEqual(drawn, {"0.35", "−25.0"})

    def test_a_star_says_that_a_policy_differs_text_by_text(self):
        texts = plan.LONG[:3]
        self.table("methods", {"importance": ((0.5,), (0.7,), (0.9,)),
                               "snapkv": ((0.4,), (0.6,), (0.8,)),
                               "adakv": ((0.3,), (0.8,), (0.9,))}, texts, ("retained_mean",))
        found = {row[0]: dict(zip(header, row)) for header, listed in [replays.methods(self.folder)]
                 for row in listed}
        self.assertEqual(found["`snapkv`"]["mean"][-1], "*")
        self.assertNotIn("*", found["`adakv`"]["mean"] + found["`importance`"]["mean"])
        # t of two degrees is 4.3027, the deviation 0.2.
        reach = 4.30265 * 0.2 / 3 ** 0.5
        self.assertEqual(found["`importance`"]["mean"],
                         f"0.700 [{0.7 - reach:.3f}, {0.7 + reach:.3f}]")
        self.assertEqual(found["`restkv`"]["mean"], "-")


if __name__ == "__main__":
    unittest.main()
