"""Tables of losses by hand, for tests of the studies of two models."""

import csv
import tempfile
import unittest
from pathlib import Path

from findings import two_models

DOCUMENTS = ("a", "b", "c", "d")


class LossesByHand(unittest.TestCase):
    """`studies` is a folder of its own with losses/."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.studies = Path(folder.name)
        (self.studies / "losses").mkdir()

    def write(self, name, policies, numbers, budgets=two_models.BUDGETS, models=tuple(two_models.MODELS),
              experiment=None):
        """Adds rows to losses/NAME.csv; numbers(model, document, policy): loss and stream error."""
        before = [] if experiment is None else [experiment]
        path = self.studies / f"losses/{name}.csv"
        header = [] if path.exists() else [[*["experiment"] * len(before), *two_models.HEADER]]
        with path.open("a", newline="") as file:
            csv.writer(file).writerows(header + [
                [*before, model, text, "code", policy, budget, 704, 128, budget, loss, loss, 0.9, error]
                for model in models for text in DOCUMENTS for budget in budgets
                for policy in policies for loss, error in [numbers(model, text, policy)]])
