"""What the tables of losses read of a study on a tiny model. Run: tests/group.sh studies_model"""

import unittest

from findings import layers, plan, prediction, runs
from test_study import WithTexts, story


class RunsTest(WithTexts):
    def test_the_pages_of_losses_read_a_study(self):
        text, policies = plan.SHORT[0], [*layers.SHOWN, "convex", "h2o:official"]
        (self.texts / f"{text.name}.txt").write_text("".join(map(story, range(6))))
        found = self.study(plan.study_of(text), texts=[self.texts / f"{text.name}.txt"], steps=80, policies=policies,
                           prompt_tokens=text.prompt_tokens, budgets=[0.2, 0.5],
                           metrics=plan.METRICS)
        read = runs.Study(self.folder)
        self.assertEqual([run.text for run in read.runs], [text])
        self.assertEqual(read.missing, [one.stem for one in plan.TEXTS if one != text])
        for row in found.losses.itertuples():
            for column in ("kl", "kl_worst", "nll", "top1", "stream_error"):
                self.assertAlmostEqual(read.value(column, text, row.policy, float(row.budget)),
                                       getattr(row, column), 5)
        table = self.folder / "losses.csv"
        runs.write(table, read.rows())
        self.assertEqual(runs.Study(table).rows(), read.rows())
        measured = prediction.Text(self.folder, text, policies)
        at = measured.policies.index("convex"), measured.budgets.index(0.5)
        self.assertAlmostEqual(measured.mean_kl[at], read.value("kl", text, "convex", 0.5), 6)
        self.assertIn("importance_pearson, mean over steps, mean over layers", measured.measures)
        self.assertEqual(layers.by_layer(self.folder, text)[1].shape[:2],
                         (len(layers.PANELS), len(layers.SHOWN)))


if __name__ == "__main__":
    unittest.main()
