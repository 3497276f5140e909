"""Tests of texts of studies: instructions in both orders."""

import unittest

import texts
from kvsim.kvtrace.markup import parse_text
from texts import orders

DESKS, RULE_NAMES = orders.DESKS, orders.RULE_NAMES


def build(name, seed=0, units=12):
    return texts.text_of(texts.KINDS[name], seed, units)


class OrdersTest(unittest.TestCase):
    def test_a_seed_gives_one_text_that_parses_and_grows_with_its_units(self):
        self.assertIs(texts.KINDS["rules"], orders.KINDS[-1])
        for kind in orders.KINDS:
            self.assertEqual(build(kind.name), build(kind.name), kind.name)
            self.assertNotEqual(build(kind.name).prompt, build(kind.name, seed=1).prompt, kind.name)
            sizes = [len(build(kind.name, units=units).prompt) for units in (4, 8, 16, 64)]
            self.assertEqual(sizes, sorted(set(sizes)), kind.name)
            text = build(kind.name)
            self.assertEqual(parse_text(text.prompt, kind.name).turns[-1].role, "user")
            self.assertNotRegex(text.prompt + text.answer, r"[{}]", kind.name)

    def test_both_requests_of_an_order_share_their_system_prompt(self):
        for order in ("defense", "directive"):
            for seed in range(len(DESKS)):
                wish, leak = (parse_text(build(f"order_{order}_{request}", seed).prompt, order)
                              for request in ("wish", "leak"))
                self.assertEqual(wish.turns[0], leak.turns[0])
                self.assertNotEqual(wish.turns[1].text, leak.turns[1].text)
                self.assertEqual((wish.compress_after, leak.compress_after), (1, 1))
                self.assertEqual(wish.turns[0].spans[0][0], order)

    def test_every_desk_has_instructions_of_its_own_and_keeps_them(self):
        for seed, desk in enumerate(DESKS):
            wish, leak = (build(f"order_defense_{request}", seed) for request in ("wish", "leak"))
            for part in (*desk.defense, *desk.directive):
                self.assertIn(part, wish.prompt)
                others = [other for other in DESKS if other is not desk]
                self.assertFalse(any(part in (*one.defense, *one.directive) for one in others))
            self.assertIn(desk.refusal, " ".join(desk.defense))
            self.assertEqual(leak.answer, desk.refusal)
            self.assertIn(desk.ending, " ".join(desk.directive))
            self.assertGreaterEqual(wish.answer.lower().count(desk.keyword), 2)
            self.assertTrue(wish.answer.endswith(desk.ending))
            self.assertNotRegex(wish.answer, r"\{|[.?!][A-Z]")

    def test_every_rule_is_a_span_and_the_answer_keeps_them(self):
        for seed, desk in enumerate(DESKS):
            text = build("rules", seed)
            names = [name for name, _, _ in parse_text(text.prompt, "rules").turns[0].spans]
            self.assertEqual(names, list(RULE_NAMES))
            self.assertEqual(len(desk.rules), len(RULE_NAMES))
            self.assertGreaterEqual(text.answer.lower().count(desk.keyword), 2)
            self.assertNotIn("!", text.answer)
            self.assertTrue(text.answer.endswith(desk.ending))


if __name__ == "__main__":
    unittest.main()
