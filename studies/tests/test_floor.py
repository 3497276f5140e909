"""Tests of the floor that studies/losses.md names: the least of several rules of hindsight."""

import csv
import tempfile
import unittest
from pathlib import Path

import numpy as np

from findings import losses, pages, plan, runs

BUDGET = 0.2


class FloorTest(unittest.TestCase):
    """Two texts; on the third one rule of hindsight has not run."""

    LOST = {"oracle-mean": (0.1, 0.4, 0.1), "oracle-restkv": (0.2, 0.1, 0.1),
            "oracle-stream": (0.3, 0.3), plan.JOINT_CHANGE: (0.3, 0.3, 0.1),
            "oracle-greedy": (0.3, 0.3, 0.1), "snapkv": (1, 1, 1), "h2o": (0.5, 0.08, 0.01)}

    def study(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name, "losses.csv")
        columns = (*runs.LOSSES, *runs.REPLAYED)
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "prompt_tokens", "seed", "group", "policy", "budget", *columns])
            for policy, lost in self.LOST.items():
                for text, one in zip(plan.SHORT, lost):
                    rows.writerow([text.kind, text.prompt_tokens, text.seed, "presets", policy, BUDGET,
                                   one, *[0.5] * (len(columns) - 1)])
        return runs.Study(path)

    def test_rules_stand_beside_each_other_and_the_best_policy_that_sees_no_later_query(self):
        header, rows = losses.rules(self.study(), plan.SHORT[:3], budgets=(BUDGET,))
        self.assertEqual(header, ["rule", "texts", "0.2"])
        self.assertEqual(rows, [["`oracle-mean`", "2", "0.67"],      # of 0.1/0.3 and 0.4/0.3
                                ["`oracle-restkv`", "2", "0.47"],    # of 0.2/0.3 and 0.1/0.3
                                ["`oracle-stream`", "2", "1.00"],
                                [f"`{plan.JOINT_CHANGE}`", "2", "1.00"],
                                ["`oracle-greedy`", "2", "1.00"],
                                ["the best policy that sees no later query", "2", "0.67"]])

    def test_it_is_the_least_on_each_text_where_all_rules_have_run(self):
        study = self.study()
        found = [study.value("kl", text, plan.FLOOR, BUDGET) for text in plan.SHORT[:3]]
        self.assertEqual(found[:2], [0.1, 0.1])
        self.assertTrue(np.isnan(found[2]))
        self.assertTrue(np.isnan(study.value("top1", plan.SHORT[0], plan.FLOOR, BUDGET)))
        rows = list(losses.summary(study, plan.SHORT, (plan.FLOOR,), (BUDGET,)))
        self.assertEqual([row[2] for row in rows], ["kl_relative", "kl"])
        self.assertAlmostEqual(rows[0][3], 0.1)
        self.assertEqual(rows[0][-1], 2)
        table = pages.relative(study, plan.SHORT, (plan.FLOOR, "oracle-mean"), budgets=(BUDGET,))
        self.assertIn(f"| **{plan.FLOOR}** | 0.10 [0.10, 0.10] |", table)
        self.assertIn("| `oracle-mean` (hindsight of one rule) |", table)

    def test_policies_below_it_are_counted_and_named(self):
        said = losses.below_floor(self.study(), plan.SHORT, budgets=(BUDGET,))
        self.assertIn("1 of 4 losses", said)
        self.assertIn("on 2 texts at 0.2 to 0.2: "
                      f"`h2o` on {plan.SHORT[1].stem} at 0.2 (0.80 of it).", said)
        one_rule = losses.below_floor(self.study(), plan.SHORT, ("oracle-mean",), (BUDGET,))
        self.assertIn("2 of 6 losses", one_rule)

    def test_one_rule_is_drawn_only_where_the_floor_is_not_known(self):
        self.assertEqual(losses.drawn({"oracle-mean": [], "snapkv": []}), ["snapkv", "oracle-mean"])
        self.assertEqual(losses.drawn({"oracle-mean": [], plan.FLOOR: []}), [plan.FLOOR])


if __name__ == "__main__":
    unittest.main()
