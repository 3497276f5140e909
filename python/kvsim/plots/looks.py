"""How a policy is drawn: one colour, dash pattern and marker, the same in every figure and page.

The colour of a preset follows from its name alone, so that it is the same in every run and on every
page. Where two presets of one run have one colour, the one of the longer name gets another dash
pattern and marker; a preset with changed settings takes the next colour that is free."""

import collections
import functools
import hashlib
from typing import NamedTuple

# On white, and on the dark page. Each has a contrast of 3 or more with its ground (WCAG 2.2, 1.4.11).
COLOURS = (("#C45A97", "#F0A3CE"), ("#2B2F9A", "#9AA8FF"), ("#8C54D0", "#B99AF0"),
           ("#2494B8", "#6CCBE0"), ("#0072B2", "#5CB2EE"), ("#008A64", "#2FC79A"),
           ("#A87200", "#E3B341"), ("#000000", "#D6DADF"), ("#76820A", "#B7C94A"),
           ("#7A4A1E", "#C99A6B"), ("#D55E00", "#F5944C"), ("#882255", "#E0719F"))
# Lengths of marks and gaps, in widths of the line; none: solid.
DASHES = ((), (5, 1.2), (1.2, 1), (5, 1.2, 1.2, 1.2), (8, 1.5),
          (3, 1), (3, 1, 1, 1, 1, 1), (2.5, 1), (8, 1.5, 1.2, 1.5), (1, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">")
# Chosen so that the policies of a default run, and those drawn together in the studies, differ in
# colour; tests/plots/test_looks.py says when another is needed.
SALT = 2374236


class Look(NamedTuple):
    """Indices into COLOURS, DASHES and MARKERS."""

    colour: int
    dash: int
    marker: int


def numbered(index):
    """The look with this number; as many as there are colours differ in colour."""
    colour, again = index % len(COLOURS), index // len(COLOURS)
    return Look(colour, (colour + 3 * again) % len(DASHES), (colour + again) % len(MARKERS))


def own_place(record):
    """The place among the colours that a record's name gives it."""
    digest = hashlib.blake2s(f"{SALT} {record}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % len(COLOURS)


@functools.lru_cache(maxsize=64)
def of(records):
    """{record: Look} of a tuple of records, all different while there are looks left."""
    found, taken = {}, collections.Counter()
    for record in sorted(records, key=lambda one: (one.count("="), len(one), one)):
        place = own_place(record)
        if "=" in record:
            free = ((place + step) % len(COLOURS) for step in range(len(COLOURS)))
            place = next((at for at in free if not taken[at]), place)
        found[record] = numbered(place + taken[place] * len(COLOURS))
        taken[place] += 1
    return found
