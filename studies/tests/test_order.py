"""Tests of horizons, all presets and generated texts on two models, on losses by hand."""

import random
import subprocess
import sys
import unittest
from pathlib import Path

from findings import generated, order, two_models
from losses_by_hand import LossesByHand


class OrderTest(LossesByHand):
    def lose(self, name, numbers):
        one = order.EXPERIMENTS[name]
        self.write("order", one.policies, numbers, one.budgets, experiment=name)

    def test_a_table_has_each_policy_over_h2o_by_model_and_budget(self):
        self.lose("horizon", lambda model, _, policy: (0.05 if policy == "kvzip" and model != "gemma3-270m" else 0.1, 0.5))
        self.lose("generated", lambda *_: (0.3, 0.5))
        header, rows = order.table(self.studies, "horizon")
        self.assertEqual(header, ["policy", "Gemma, 0.1", "Gemma, 0.35", "SmolLM2, 0.1", "SmolLM2, 0.35"])
        self.assertEqual(len(rows), len(order.EXPERIMENTS["horizon"].policies))   # H2O's own stands last
        self.assertEqual([one[:4] for one in rows[0]], ["`kvz", "1.00", "1.00", "0.50", "0.50"])
        self.assertEqual(rows[-1], ["`h2o`, nats", "0.100", "0.100", "0.100", "0.100"])
        self.assertEqual(len(order.table(self.studies, "horizon", 3)[1]), 4)
        self.assertEqual(order.table(self.studies, "generated")[1][-1][1:], ["0.300"] * 8)

    def test_the_figure_has_a_point_for_each_preset(self):
        self.lose("presets", lambda *_: (0.1, 0.5))
        figure = order.draw(self.studies)
        self.assertEqual(len(figure.axes), 2)
        for ax in figure.axes:
            self.assertEqual(len(ax.lines), 2 + len(order.EXPERIMENTS["presets"].policies))   # and two lines at 1
            self.assertEqual({text.get_text() for text in ax.texts}, set(order.NAMED))

    def test_what_kvsim_study_is_given(self):
        words = order.options("horizon")
        self.assertEqual([words[words.index(one) + 1] for one in ("--prompt-tokens", "--steps", "--probe")],
                         ["704", "512", "repeat:gradient"])
        for name, one in order.EXPERIMENTS.items():
            self.assertIn(two_models.BASE, one.policies, name)
            self.assertEqual(len(one.policies), len(set(one.policies)), name)

    def test_generated_texts_follow_from_their_seed(self):
        for kind in generated.KINDS:
            text = kind(random.Random("a"))
            self.assertEqual(text, kind(random.Random("a")))
            self.assertNotEqual(text, kind(random.Random("b")))
            self.assertGreaterEqual(len(text), generated.LENGTH)
        subprocess.run([sys.executable, "-m", "findings.generated", self.studies], check=True)
        written = sorted(Path(self.studies, "generated").glob("*.txt"))
        self.assertEqual(len(written), generated.TEXTS * len(generated.KINDS))


if __name__ == "__main__":
    unittest.main()
