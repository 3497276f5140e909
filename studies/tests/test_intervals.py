"""Tests of the intervals of the study over few texts, and of what is concluded from them."""

import csv
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import numpy as np

from findings import claims, claims_drawn, coverage, plan, runs


class CoverageTest(unittest.TestCase):
    """How often 95 % intervals over 4, 6 and 8 texts hold the true mean, simulated."""

    def test_student_holds_95_of_100_where_ratios_are_log_normal(self):
        for count in coverage.COUNTS:
            share = coverage.covered("normal (ratios are log-normal)", count,
                                     coverage.INTERVALS["t"])
            self.assertAlmostEqual(share, 0.95, delta=0.012)   # 3.5 standard errors

    def test_student_loses_little_on_skewed_and_contaminated_texts(self):
        for kind in coverage.KINDS:
            for count in coverage.COUNTS:
                share = coverage.covered(kind, count, coverage.INTERVALS["t"])
                self.assertGreater(share, 0.90, (kind, count))

    def test_resampling_few_texts_holds_too_little(self):
        for count, most in ((4, 0.83), (6, 0.88), (8, 0.91)):
            share = coverage.covered("normal (ratios are log-normal)", count,
                                     coverage.INTERVALS["percentile bootstrap"], 1000)
            self.assertLess(share, most)

    def test_chance_is_as_likely_as_it_says(self):
        values = np.random.default_rng(3).normal(size=(3000, 6))
        share = np.mean([claims.statistics.chance(row) < 0.05 for row in values])
        self.assertAlmostEqual(share, 0.05, delta=0.014)


class VerdictTest(unittest.TestCase):
    """Claims judged from a table of losses."""

    CLAIM = claims.CLAIMS[0]

    def study(self, ratios):
        """Of a table in which the claim's policy loses `ratios[budget][text]` of the other."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name, "losses.csv")
        columns = (*runs.LOSSES, *runs.REPLAYED)
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "prompt_tokens", "seed", "group", "policy", "budget", *columns])
            for text in plan.SHORT:
                for budget, factors in ratios.items():
                    factor = factors[plan.SHORT.index(text) % len(factors)]
                    for policy, loss in ((self.CLAIM.policy, factor), (self.CLAIM.without, 1)):
                        values = {one: 0.5 for one in columns} | {"kl": 2 * loss}
                        rows.writerow([text.kind, text.prompt_tokens, text.seed, "presets", policy,
                                       budget, *values.values()])
        return runs.Study(path)

    def test_comparisons_are_counted_and_corrected_for(self):
        study = self.study({0.2: (0.5, 0.5001), 0.35: (0.7, 1.2), 0.5: (1.01, 1.02)})
        found = claims.comparisons(study, "kl")
        self.assertEqual({budget: bool(clear) for (_, budget, _), (_, clear) in found.items()},
                         {0.2: True, 0.35: False, 0.5: True})
        said = claims.said(study)
        self.assertIn("there are 3 comparisons", said)
        self.assertIn("2 are, 1 of them around an effect of at least 5 %. 1 are left", said)
        listed = {row[6]: row for row in claims.every(study) if row[5] == "kl"}
        self.assertEqual(listed["0.2"][7:], ["0.5", "0.5", "0.5001", len(plan.SHORT), "less", "yes"])
        self.assertEqual(listed["0.5"][-2:], ["level", "yes"])   # without 1, and too small to count

    def test_sets_are_told_and_verdicts_counted(self):
        study = self.study({0.2: (0.5, 0.5001), 0.35: (0.7, 1.2), 0.5: (1.01, 1.02)})
        specification = "| `snapkv` | `smooth=avg` | x |\n| `h2o:official` | `schedule=decode` | x |"
        self.assertEqual(claims.sets("h2o:official,granularity=query", specification),
                         "query head, each step")
        self.assertEqual(
            claims.tally(study, self.CLAIM.paper),
            f"`{self.CLAIM.policy}` against its baselines: 3 comparisons by the loss, "
            "1 less, 0 more, 1 level, 1 undecided.")

    def test_methods_with_more_sets_stand_beside_a_baseline_at_the_same_bytes(self):
        """Losses of a power of the bytes: the interpolation is exact, and nothing stands outside of it."""
        specification = "| `snapkv` | `smooth=avg` | x |"
        study = self.study({0.1: (1,), 0.2: (1,), 0.4: (1,)})
        for run in study.runs:
            p = run.policies.index(self.CLAIM.policy)
            for column in ("bytes", "peak"):
                run.table[column][:] = np.array(run.budgets)
            run.table["bytes"][p] *= 2   # three sets of which many entries are the same
            run.table["kl"][:] = 0.01 / run.table["bytes"]
            run.table["kl"][p] *= 0.5
        rows = list(claims.same_bytes(study, specification))[1:]
        self.assertEqual(rows, [[self.CLAIM.paper, self.CLAIM.policy, self.CLAIM.without, 704, "prompt",
                                 share, "0.5", "0.5", "0.5", "less"] for share in ("0.2", "0.35")])
        for run in study.runs:   # as many bytes: the other table has it already
            run.table["bytes"][:] = np.array(run.budgets)
        self.assertEqual(list(claims.same_bytes(study, specification))[1:], [])

    def test_where_later_entries_leave_the_most_bytes_count(self):
        specification = f"| `{self.CLAIM.without}` | `schedule=decode` | x |"
        study = self.study({0.1: (1,), 0.2: (1,), 0.4: (1,)})
        for run in study.runs:
            run.table["peak"][:] = run.table["bytes"][:] = np.array(run.budgets)
            run.table["peak"][run.policies.index(self.CLAIM.policy)] += 0.1   # later entries stay
        rows = list(claims.same_bytes(study, specification))[1:]
        self.assertEqual([row[4:] for row in rows],
                         [["peak", share, "1", "1", "1", "level"] for share in ("0.2", "0.35")])

    def test_the_map_shows_what_the_table_says(self):
        study = self.study({0.2: (0.5, 0.5001), 0.35: (0.7, 1.2), 0.5: (1.01, 1.02)})
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "losses").mkdir()
            runs.write(Path(folder) / "losses/claims.csv", claims.every(study))
            rows = claims_drawn.read(Path(folder))
        figure = claims_drawn.draw(rows, self.CLAIM.paper, "told")
        self.assertEqual([text.get_text() for text in figure.axes[0].texts], ["0.50**", "0.92", "1.01"])

    def test_the_table_of_losses_is_read_as_it_was_written(self):
        study = self.study({0.2: (0.5, 0.6)})
        self.assertEqual(study.value("kl", plan.SHORT[1], self.CLAIM.policy, 0.2), 1.2)
        self.assertTrue(np.isnan(study.value("kl", plan.SHORT[1], "nobody", 0.2)))
        header, *rows = study.rows()
        self.assertEqual(len(rows), 2 * len(plan.SHORT))
        self.assertEqual(dict(zip(header, rows[0]))["kl"], "1")


if __name__ == "__main__":
    unittest.main()
