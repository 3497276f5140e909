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
        self.write("order", one.policies, numbers, one.budgets, one.models, name)

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

    def test_claims_are_counted_and_parts_that_are_told_are_listed(self):
        def numbers(model, text, policy):
            wobble = 1 + 0.01 * "abcd".index(text)
            better = policy == "layer-defensivekv" and model == "gemma3-270m"
            return (0.1 * (0.5 * wobble if better else 1) * (1.5 * wobble if policy == "keepkv" else 1), 0.5)

        self.lose("claims", numbers)
        header, rows = order.counted(self.studies)
        self.assertEqual(header, ["paper", "method", "baselines", "Gemma, 0.1", "Gemma, 0.35", "SmolLM2, 0.1", "SmolLM2, 0.35"])
        cells = {row[1]: row[2:] for row in rows}
        self.assertEqual(cells["`layer-defensivekv`"], ["5", "5 less", "5 less", "none told", "none told"])
        self.assertEqual(cells["`keepkv`"], ["5"] + ["5 more"] * 4)
        self.assertEqual(cells["`restkv`"], ["5"] + ["none told"] * 4)
        _, rows = order.parts(self.studies)
        listed = {row[1]: row[2:] for row in rows}
        self.assertEqual([one[:4] for one in listed["prior, with the maximum"]], ["0.51", "0.51", "1.00", "1.00"])
        self.assertIn("Eq. 7 against convex merging", listed)
        self.assertNotIn("moving average over time, not mean (Table 3)", listed)

    def test_a_shape_is_compared_with_the_best_published_score_in_it(self):
        def numbers(model, text, policy):
            return {"kvzip:set": 0.2, "kvcompose:set": 0.4 if model == "gemma3-270m" else 0.1,
                    "rehearsal:recent-set": 0.1}.get(policy, 0.3), 0.5

        self.lose("shapes", numbers)
        rows = [row for row in order.in_shapes(self.studies)[1] if row[0] == "one set per layer"]
        self.assertEqual(rows[0][2:], ["`kvzip:set`"] * 4 + ["`kvcompose:set`"] * 4)
        self.assertEqual(rows[1][:2], ["one set per layer", "`rehearsal:recent-set`"])
        self.assertEqual([one[:4] for one in rows[1][2:]], ["0.50"] * 4 + ["1.00"] * 4)
        self.assertTrue(rows[-1][1].endswith("(hindsight)"))

    def test_a_part_is_judged_by_what_ours_loses_without_it(self):
        without = order.PARTS["without its competition"]
        self.lose("parts", lambda model, _, policy: (0.3 if policy == without and model == "gemma3-270m" else 0.1, 0.5))
        rows = {row[0]: [one[:4] for one in row[1:]] for row in order.ablated(self.studies)[1]}
        self.assertEqual(rows["without its competition"], ["3.00", "3.00", "1.00", "1.00"])
        self.assertEqual(rows["attention of the prompt's queries for its scores"], ["1.00"] * 4)
        self.assertEqual(len(rows), 5)

    def test_chunks_are_compared_on_the_same_texts(self):
        self.lose("chunks", lambda _, text, policy: (0.1 if policy == "kvzip" else 0.2, 0.5))
        self.write("why", ("h2o", "kvzip", "kvgrad"), lambda *_: (0.2, 0.5), ("0.1", "0.35"), experiment="long")
        rows = {row[0]: row[1:] for row in order.chunked(self.studies)[1]}
        self.assertEqual([one[:4] for one in rows["`kvzip`"]], ["0.50"] * 4)
        self.assertEqual([one[:4] for one in rows["`kvgrad`"]], ["1.00"] * 4)
        self.assertEqual(len(rows), 2)   # what the other study has

    def test_stream_errors_that_are_the_losses_foretell_them(self):
        places = {one: place for place, one in enumerate(order.EXPERIMENTS["presets"].policies)}

        def numbers(model, _, policy):
            loss = 0.1 + 0.01 * places[policy]
            return loss, loss if model == "gemma3-270m" or places[policy] >= 11 else -loss

        for name in ("presets", "long"):
            self.lose(name, numbers)
        rows = order.predicted(self.studies)[1]
        self.assertEqual([row[:2] for row in rows], [["Gemma", "704"], ["SmolLM2", "704"], ["Gemma", "2304"]])
        self.assertEqual(rows[0][2:], ["1.00 [1.00, 1.00]"] * 4)
        self.assertEqual(rows[1][4:], ["-1.00 [-1.00, -1.00]"] * 2)

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
