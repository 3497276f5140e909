"""Tests of the tables of what the model loses with the papers' smaller claims; see test_plots.py."""

import csv
import tempfile
import unittest
from pathlib import Path

import numpy as np
from findings import details, plan, runs


class DetailsTest(unittest.TestCase):
    """Two texts, losses by hand."""

    def tables(self, lost):
        """A folder with a table of losses: {(policy, budget): losses of two texts}; a stream error of 0.5."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        studies = Path(folder.name)
        (studies / "losses").mkdir()
        columns = (*runs.LOSSES, *runs.REPLAYED)
        with (studies / "losses/int4.csv").open("w", newline="") as file:
            rows = csv.DictWriter(file, ["text", "prompt_tokens", "seed", "group", "policy", "budget",
                                         *columns])
            rows.writeheader()
            for (policy, budget), values in lost.items():
                for text, kl in zip(details.TEXTS, values):
                    rows.writerow(dict.fromkeys(columns, 0.5) | {
                        "text": text.kind, "prompt_tokens": text.prompt_tokens, "seed": text.seed,
                        "group": "one", "policy": policy, "budget": budget, "kl": kl})
        return studies

    def test_bits_are_set_against_entries_text_by_text(self):
        rounded = "snapkv,quantize=per-token"
        header, rows = details.int4(self.tables(
            {("snapkv", 0.1): (0.4, 0.8), (rounded, 0.4): (0.1, 0.2), ("snapkv", 0.4): (0.1, 0.1),
             (plan.ALL_INT2, 1.0): (2.0, 2.0)}))
        cells = dict(zip(header, rows[0]))
        self.assertEqual(cells["policy"], "`snapkv`")
        self.assertEqual(cells["stream error"], "0.500, 0.500, 0.500")
        self.assertEqual(cells["40 % with int4 by 10 %"], "0.25 [0.25, 0.25]*")
        # Ratios 1 and 2: Student's t of one degree is 12.706, the deviation over sqrt 2 is ln(2) / 2.
        reach = np.exp(12.7062047 * np.log(2) / 2)
        self.assertEqual(cells["with int4 by without"],
                         f"1.41 [{2 ** 0.5 / reach:.2f}, {2 ** 0.5 * reach:.2f}]")
        self.assertEqual(rows[1][1:], ["-, -, -", *["-"] * 5])
        self.assertEqual(rows[-1][:3], ["everything, 2 bits", "0.500", "2 [2, 2]"])

    def test_merging_first_is_set_against_evicting_first(self):
        header, rows = details.merge_first(self.tables(
            {("convex", 0.3): (0.4, 0.4), ("convex,merge_order=merge-first", 0.3): (0.8, 0.8)}))
        self.assertEqual(header, ["policy", "measure", "0.1", "0.3", "0.5"])
        self.assertEqual(rows[2], ["`convex`", "loss", "-", "2.00 [2.00, 2.00]*", "-"])

    def test_the_studies_are_those_of_the_plan_and_stand_in_the_table(self):
        study = details.study_of(Path(__file__).resolve().parents[1])
        for name in details.STUDIES:
            for policy in plan.STUDIES[name].groups[name]:
                self.assertEqual(study.texts((policy,), plan.STUDIES[name].budgets, details.TEXTS),
                                 list(details.TEXTS), policy)


if __name__ == "__main__":
    unittest.main()
