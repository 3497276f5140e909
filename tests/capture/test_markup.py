"""Marked-up prompts: what the parser takes, what it refuses, what becomes of a chat in JSON.

Needs nothing but Python. Run: python3 tests/capture/test_markup.py
"""

import json
import sys
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / name) for name in ("python", "data")]

from kvsim.errors import Error
from kvsim.kvtrace.markup import parse_chat_json, parse_text, plain_text


class ParseText(unittest.TestCase):
    def refused(self, text: str, part: str) -> None:
        with self.assertRaises(Error) as caught:
            parse_text(text, "p.txt")
        self.assertIn(part, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(caught.exception.exit_code, 3)

    def test_plain_text_is_one_turn_without_role(self):
        turns = parse_text("  Hello there.\n", "p.txt").turns
        self.assertEqual([(t.role, t.text) for t in turns], [(None, "Hello there.")])

    def test_spans_are_offsets_into_the_text_without_markers(self):
        turn = parse_text('a <span name="x">bc</span> d<span name="y">e</span>', "p.txt").turns[0]
        self.assertEqual(turn.text, "a bc de")
        self.assertEqual(turn.spans, [("x", 2, 4), ("y", 6, 7)])

    def test_misspelt_markers_are_refused(self):
        for marker, meant in {'<spam name="x">': '<span name="...">', '<Span name="x">': '<span name="...">',
                              '< span name="x">': '<span name="...">', "<sapn name='x'>": '<span name="...">',
                              '<turm role="user">': '<turn role="...">', "<compres/>": "<compress/>",
                              "<Compress />": "<compress/>", "<compression/>": "<compress/>"}.items():
            with self.subTest(marker):
                self.refused(f"a\n{marker}b", f"p.txt:2: {marker}: unknown marker (did you mean {meant}?)")
        for text in ('<a name="top">', '<map name="m">', '<param name="p">', '<input name="i">', "<b>",
                     "x < span and y > turn", '<div role="main">', "<spam>", "<stdio.h>"):
            self.assertEqual(parse_text(text, "p.txt").turns[0].text, text)
        self.assertEqual(plain_text('<spam name="x">').turns[0].text, '<spam name="x">')

    def test_misspelt_roles_are_refused(self):
        for role, meant in {"usr": "user", "User": "user", "sytem": "system", "assistent": "assistant"}.items():
            self.refused(f'<turn role="{role}">a</turn>', f'unknown role "{role}" (did you mean {meant}?)')
            with self.assertRaisesRegex(Error, f"did you mean {meant}"):
                parse_chat_json(json.dumps([{"role": role, "content": "a"}]), "c.json")
        for role in ("user", "tool", "observation", "ipython"):
            self.assertEqual(parse_text(f'<turn role="{role}">a</turn>', "p.txt").turns[0].role, role)

    def test_a_byte_order_mark_is_no_part_of_the_text(self):
        mark = "\ufeff"
        self.assertEqual(parse_text(mark + "Hello", "p.txt").turns[0].text, "Hello")
        self.assertEqual(parse_text(mark + '<turn role="user">Hi</turn>', "p.txt").turns[0].text, "Hi")
        self.assertEqual(plain_text(mark + "Hello").turns[0].text, "Hello")
        chat = json.dumps([{"role": "user", "content": "Hi"}])
        self.assertEqual(parse_chat_json(mark + chat, "p.json").turns[0].text, "Hi")

    def test_no_two_spans_share_a_name(self):
        self.refused('<span name="n">a</span> <span name="n">b</span>',
                     'span "n" comes twice; expected distinct names')

    def test_trimming_a_turn_moves_its_offsets(self):
        turn = parse_text('\n\n <span name="x"> ab</span><compress/>\n', "p.txt").turns[0]
        self.assertEqual((turn.text, turn.spans, turn.compress_at), ("ab", [("x", 0, 2)], 2))

    def test_compress_between_turns_counts_turns(self):
        text = '<turn role="system">s</turn>\n<compress/>\n<turn role="user">u</turn>'
        conversation = parse_text(text, "p.txt")
        self.assertEqual(conversation.compress_after, 1)
        self.assertTrue(conversation.has_compress)
        self.assertEqual([t.role for t in conversation.turns], ["system", "user"])

    def test_unbalanced_markers_are_refused_with_their_line(self):
        self.refused('one\n<span name="x">two', 'p.txt:2: span "x" is not closed')
        self.refused("one</span>", "</span> without <span>")
        self.refused('<turn role="user">a', "<turn> is not closed")
        self.refused('<turn role="user">a</turn></turn>', "</turn> without <turn>")
        self.refused('<turn role="user">a<turn role="user">b</turn>', "<turn> inside a turn")

    def test_spans_lie_in_one_another(self):
        turn = parse_text('<span name="x">a <span name="y">b</span><span name="z">c</span></span>',
                          "p.txt").turns[0]
        self.assertEqual(turn.text, "a bc")
        self.assertEqual(sorted(turn.spans), [("x", 0, 4), ("y", 2, 3), ("z", 3, 4)])
        self.refused('<span name="x">a<span name="y">b</span>', 'span "x" is not closed')

    def test_empty_and_nameless_spans_are_refused(self):
        self.refused('a<span name="x"> </span>', "is empty")
        self.refused("<span>a</span>", 'expected <span name="...">')
        self.refused("<span name='x'>a</span>", "--no-markup if this is text")
        self.refused("a<compress here/>", "expected <compress/>")

    def test_names_that_policy_records_cannot_hold_are_refused(self):
        for name in ("a+b", "a,b", "a=b", "a b", "12-19", "7", ""):
            self.refused(f'<span name="{name}">a</span>', "expected a name without")

    def test_text_outside_turns_and_two_compress_are_refused(self):
        self.refused('stray <turn role="user">a</turn>', "outside of <turn>")
        self.refused("a<compress/>b<compress/>", "a second <compress/>")
        self.refused('<compress/><turn role="user">a<compress/></turn>', "a second <compress/>")

    def test_an_empty_prompt_is_refused(self):
        self.refused(" \n", "the prompt is empty")
        self.refused('<turn role="user"> </turn>', "the prompt is empty")

    def test_other_tags_are_text(self):
        self.assertEqual(parse_text("a <b>c</b> <spanner>", "p.txt").turns[0].text,
                         "a <b>c</b> <spanner>")

    def test_without_markup_markers_are_text(self):
        self.assertEqual(plain_text("a<compress/>b").turns[0].text, "a<compress/>b")


class ParseJson(unittest.TestCase):
    def test_contents_may_hold_markers(self):
        messages = [{"role": "system", "content": '<span name="d">no</span> yes<compress/>'},
                    {"role": "user", "content": "hi"}]
        conversation = parse_chat_json(json.dumps(messages), "c.json")
        self.assertEqual(conversation.turns[0].spans, [("d", 0, 2)])
        self.assertEqual(conversation.turns[0].compress_at, 6)
        self.assertEqual(conversation.turns[1].role, "user")

    def test_bad_chats_are_refused_in_one_line(self):
        for text in ("{", "{}", "[1]", '[{"role": "user"}]', "[]",
                     '[{"role": "user", "content": "<turn role=\'x\'>a</turn>"}]',
                     '[{"role": "user", "content": "a<compress/>"},'
                     ' {"role": "user", "content": "b<compress/>"}]'):
            with self.assertRaises(Error) as caught:
                parse_chat_json(text, "c.json")
            self.assertIn("c.json", str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
