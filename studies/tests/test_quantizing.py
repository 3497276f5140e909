"""Tests of the tables of fewer entries and fewer bits, on losses by hand."""

import csv
import tempfile
import unittest
from pathlib import Path

from findings import quantizing, two_models

BYTES = {"fp8": 0.5, "nvfp4": 0.28125}


class Quantizing(unittest.TestCase):
    """A form loses 0.01 nats over its bytes, an eviction policy ten times that, both together twice."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.studies = Path(folder.name)
        (self.studies / "losses").mkdir()
        rows = [(policy, "1", BYTES.get(policy, 0.2), 0.01) for policy in quantizing.FORMS.values()]
        rows += [(policy, budget, float(budget), 0.1)
                 for policy in quantizing.EVICTING.values() for budget in quantizing.BUDGETS]
        rows += [(policy, budget, float(budget) / 2, 0.02)
                 for policy in quantizing.BOTH.values() for budget in quantizing.BUDGETS]
        with (self.studies / "losses/quantizing.csv").open("w", newline="") as file:
            csv.writer(file).writerows([quantizing.HEADER] + [
                [model, text, policy, budget, held, loss / held, 0.9]
                for model in two_models.MODELS for text in ("a", "b", "c") for policy, budget, held, loss in rows])

    def test_forms_stand_by_their_bytes(self):
        header, rows = quantizing.by_form(self.studies)
        self.assertEqual(len(header), 5)
        self.assertEqual(rows[0], ["fp8", *["1/2.0", "0.02 [0.02, 0.02]"] * 2])
        self.assertEqual(rows[1][:2], ["nvfp4", "1/3.6"])

    def test_only_what_fits_wins(self):
        _, rows = quantizing.winners(self.studies)
        found = {tuple(row[:2]): row[2:] for row in rows}
        two, seven = (found["gemma3-270m", times] for times in ("2", "7"))
        self.assertEqual(two[0], "fp8: 0.02 [0.02, 0.02]")
        self.assertEqual(two[1], "H2O at 0.5: 0.20 [0.20, 0.20]")
        self.assertTrue(two[2].endswith("at 0.5: 0.08 [0.08, 0.08]"))
        # No form here is seven times smaller.
        self.assertEqual(seven[0], "-")
        self.assertEqual(seven[1], "H2O at 0.14: 0.71 [0.71, 0.71]")
        self.assertTrue(seven[2].endswith("at 0.28: 0.14 [0.14, 0.14]"))

    def test_a_panel_for_each_model(self):
        figure = quantizing.draw(self.studies)
        self.assertEqual([ax.get_title() for ax in figure.axes], list(two_models.MODELS.values()))


if __name__ == "__main__":
    unittest.main()
