"""Generated texts: the same from the same seed, growing with their units, and well marked up.

Run: tests/group.sh studies
"""

import ast
import json
import random
import re
import unittest

import texts
from contributing import example
from kvsim.errors import Error
from kvsim.kvtrace.markup import parse_text
from kvsim.tasks.works import works
from texts import found, program


def build(name: str, seed: int = 0, units: int = 12) -> texts.Text:
    return texts.text_of(texts.KINDS[name], seed, units)


def is_here(name: str) -> bool:
    """Whether this machine has what the kind is read from; generated ones are everywhere."""
    try:
        return bool(build(name).prompt)
    except Error as error:
        print(f"{name}: left out: {error}")
        return False


texts.KINDS.update({kind.name: kind for kind in example("text", "texts.example").KINDS})
WRITTEN = [name for name, kind in texts.KINDS.items() if not kind.raw]
HERE = WRITTEN + [name for name, kind in texts.KINDS.items() if kind.raw and is_here(name)]


class EveryKind(unittest.TestCase):
    def test_a_seed_gives_one_text_and_another_seed_another(self):
        for name in HERE:
            self.assertEqual(build(name), build(name), name)
            self.assertNotEqual(build(name).prompt, build(name, seed=1).prompt, name)

    def test_more_units_make_longer_prompts(self):
        for name in HERE:
            made = [build(name, units=units) for units in (4, 8, 16, 64)]
            sizes = [len(one.answer if texts.KINDS[name].long else one.prompt) for one in made]
            self.assertEqual(sizes, sorted(set(sizes)), name)

    def test_every_kind_says_where_its_text_comes_from(self):
        for name in HERE:
            said = texts.KINDS[name].origin(1)
            self.assertRegex(said, r"\(.+\)", name)   # the licence
            self.assertEqual("written for kvsim" in said, name in WRITTEN)

    def test_prompts_parse_and_nothing_is_left_unfilled(self):
        for name in WRITTEN:
            text = build(name)
            conversation = parse_text(text.prompt, name)
            self.assertEqual(conversation.turns[-1].role, "user")
            self.assertTrue(text.answer.strip())
            if name != "code" and name != "switch":
                self.assertNotRegex(text.prompt + text.answer, r"[{}]", name)
            self.assertNotIn("  ", text.answer.replace("\n    ", "\n").replace("    ", ""), name)


class SomeKinds(unittest.TestCase):
    def test_found_texts_go_on_where_the_prompt_ends(self):
        text = build("python", units=30)
        whole = found.module("heapq")
        lines = [line.rstrip() for line in whole.strip().splitlines()]
        self.assertTrue("\n".join(lines).startswith(text.prompt + text.answer))
        with self.assertRaisesRegex(Error, "too few for a prompt of 100000"):
            build("manual", units=100000)
        with self.assertRaisesRegex(Error, "not on this machine"):
            found.file("/no/such/file")

    def test_works_do_not_repeat(self):
        found = works(random.Random(0), 400)
        self.assertEqual(len({(work.place, work.thing) for work in found}), 400)

    def test_code_is_python_and_its_classes_differ(self):
        text = build("code", units=2 * len(program.RECORDS))
        module = re.search(r"```python\n(.*?)```", text.prompt, re.S)[1]
        classes = [n.name for n in ast.parse(module).body if isinstance(n, ast.ClassDef)]
        answer = ast.parse(text.answer.removeprefix("```python").removesuffix("```"))
        classes += [n.name for n in answer.body if isinstance(n, ast.ClassDef)]
        self.assertEqual(len(classes), len(set(classes)))
        for name in classes[-2:]:
            self.assertIn(name, text.prompt)

    def test_counting_adds_up(self):
        text = build("counting", units=40)
        totals = {}
        numbers = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
        for verb, amount, colour in re.findall(r"(puts|takes) (\w+) (\w+) stone", text.prompt):
            totals[colour] = totals.get(colour, 0) + (1 if verb == "puts" else -1) * numbers[amount]
        last = text.answer.splitlines()[-1]
        for colour, count in totals.items():
            self.assertIn(f"{colour} {count}", last)

    def test_the_switch_is_from_prose_to_json(self):
        prose, records = build("switch").answer.rsplit("\n\n", 1)
        self.assertNotIn("{", prose)
        self.assertEqual(len([json.loads(line) for line in records.splitlines()]), 12)

    def test_needles_are_spans_at_their_depth(self):
        for name, depth in (("needle_d000", 0.0), ("needle_d025", 0.25), ("needle_d050", 0.5),
                            ("needle_d075", 0.75), ("needle_d100", 1.0)):
            turn = parse_text(build(name, units=20).prompt, name).turns[0]
            [(label, begin, _)] = turn.spans
            self.assertEqual(label, "needle")
            self.assertAlmostEqual(begin / len(turn.text), depth, delta=0.03)
        names = [name for name, _, _ in parse_text(build("needles4").prompt, "n").turns[0].spans]
        self.assertEqual(names, ["needle1", "needle2", "needle3", "needle4"])

    def test_agnostic_texts_are_compressed_where_the_question_begins(self):
        for name, asks in (("summary", "Please summarise"), ("questions", "Answer these"),
                           ("fewshot", "Label these"), ("needles4", "Which locker")):
            aware, agnostic = build(name), build(f"{name}_agnostic")
            before, after = agnostic.prompt.split("<compress/>")
            self.assertEqual((before + after, agnostic.answer), (aware.prompt, aware.answer))
            self.assertTrue(after.startswith(asks), after)
            self.assertNotIn("\0", aware.prompt + agnostic.prompt)


if __name__ == "__main__":
    unittest.main()
