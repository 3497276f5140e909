"""Tests of scripts/prose.py. Run: /usr/bin/python3 tests/cli/test_prose.py"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import prose

LONG = " ".join(["word"] * 31)


class Prose(unittest.TestCase):
    def test_sentences_end_where_a_reader_ends_them(self):
        page = ("# Title\n\nOne `code.py` thing, Eq. 7 of a paper. **Two.** Three [a link](there): four "
                "(e.g. five).\n\n- an item\n- another.\n\n| a | table |\n\n```\nno prose. at all.\n```\n")
        self.assertEqual(prose.sentences(page), [
            "One `code.py` thing, Eq. 7 of a paper.", "**Two.**", "Three a link:", "four (e.g. five).",
            "an item", "another."])

    def test_long_sentences_and_long_pages_are_named(self):
        self.assertEqual(prose.complaints("PAGE", "Short. " * 9 + LONG[5:] + "."), [])
        said = prose.complaints("PAGE", "Short. " * 9 + LONG + ".")
        self.assertEqual(len(said), 1)
        self.assertTrue(said[0].startswith("PAGE: 31 words, expected at most 30: word word"))
        self.assertEqual(prose.complaints("PAGE", (" ".join(["w"] * 21) + ". ") * 3),
                         ["PAGE: 21.0 words a sentence, expected at most 18"])


if __name__ == "__main__":
    unittest.main()
