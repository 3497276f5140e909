"""Code completion: a Python module of small record classes, continued in its own style."""

import random

from .kinds import Kind, Text, chat

# name, plural, text field, number field, its unit, true-or-false field
RECORDS = (
    ("Boat", "boats", "owner", "length", "metres", "afloat"),
    ("Lamp", "lamps", "maker", "height", "centimetres", "lit"),
    ("Ticket", "tickets", "visitor", "price", "crowns", "used"),
    ("Rope", "ropes", "fibre", "strength", "kilograms", "spliced"),
    ("Chart", "charts", "printer", "scale", "thousands", "mounted"),
    ("Barrel", "barrels", "cooper", "volume", "litres", "sealed"),
    ("Letter", "letters", "sender", "postage", "pence", "opened"),
    ("Bell", "bells", "foundry", "weight", "kilograms", "cracked"),
    ("Anchor", "anchors", "smith", "mass", "kilograms", "rusted"),
    ("Painting", "paintings", "artist", "width", "centimetres", "framed"),
    ("Key", "keys", "room", "teeth", "notches", "lost"),
    ("Clock", "clocks", "builder", "drift", "seconds", "wound"),
    ("Crate", "crates", "shipper", "load", "kilograms", "nailed"),
    ("Flag", "flags", "weaver", "area", "square metres", "raised"),
    ("Lens", "lenses", "grinder", "focus", "millimetres", "polished"),
    ("Net", "nets", "mender", "mesh", "millimetres", "dry"),
    ("Oar", "oars", "carver", "span", "metres", "varnished"),
    ("Compass", "compasses", "workshop", "deviation", "degrees", "sealed"),
    ("Drum", "drums", "drummer", "depth", "centimetres", "tuned"),
    ("Stove", "stoves", "caster", "output", "kilowatts", "swept"),
    ("Medal", "medals", "bearer", "diameter", "millimetres", "engraved"),
    ("Sail", "sails", "loft", "surface", "square metres", "patched"),
    ("Basket", "baskets", "plaiter", "girth", "centimetres", "lined"),
    ("Coin", "coins", "mint", "fineness", "carats", "worn"),
    ("Cart", "carts", "wheelwright", "tread", "centimetres", "braked"),
    ("Horn", "horns", "player", "pitch", "hertz", "dented"),
    ("Ladder", "ladders", "joiner", "reach", "metres", "folded"),
    ("Mirror", "mirrors", "glazier", "curvature", "dioptres", "silvered"),
    ("Tile", "tiles", "potter", "thickness", "millimetres", "chipped"),
    ("Whistle", "whistles", "tinsmith", "loudness", "decibels", "engraved"),
)  # fmt: skip

HEAD = '''\
@dataclass
class {name}:
    """One of the museum's {plural}; {number} is in {unit}."""

    label: str
    {text}: str
    {number}: float
    {flag}: bool = False
'''
METHODS = (
    '''
    def describe(self) -> str:
        state = "{flag}" if self.{flag} else "not {flag}"
        return f"{{self.label}} by {{self.{text}}}, {{self.{number}:.1f}} {unit}, {{state}}"
''',
    '''
    def with_{number}(self, {number}: float) -> "{name}":
        if {number} <= 0:
            raise ValueError(f"{{self.label}}: {number} must be positive, not {{{number}}}")
        return replace(self, {number}={number})
''',
    '''
    def mark_{flag}(self, journal: Journal) -> None:
        if self.{flag}:
            journal.warn(f"{{self.label}} was {flag} already")
        self.{flag} = True
        journal.note("{name}", self.label, "{flag}")
''',
    '''
    @classmethod
    def from_row(cls, row: dict[str, str]) -> "{name}":
        return cls(row["label"], row["{text}"], float(row["{number}"]), row["{flag}"] == "yes")
''',
)
FUNCTIONS = (
    '''

def total_{number}_of_{plural}({plural}: list[{name}]) -> float:
    """Sum over all {plural} that are {flag}, in {unit}."""
    return sum(item.{number} for item in {plural} if item.{flag})
''',
    '''

def {plural}_by_{text}({plural}: list[{name}]) -> dict[str, list[{name}]]:
    """Groups the {plural} by {text}, each group with the largest {number} first."""
    groups: dict[str, list[{name}]] = {{}}
    for item in sorted({plural}, key=lambda item: -item.{number}):
        groups.setdefault(item.{text}, []).append(item)
    return groups
''',
    '''

def largest_{name_lower}({plural}: list[{name}]) -> {name} | None:
    """The one with the largest {number}, or None when there are no {plural}."""
    return max({plural}, key=lambda item: item.{number}, default=None)
''',
)
START = '''\
"""The collection of the harbour museum: one record class per kind of object."""

from dataclasses import dataclass, replace

from museum.journal import Journal
'''


def record_slots(start: int, index: int) -> dict[str, str]:
    """Names for the record at `index` of a module that begins its round at `start`."""
    name, plural, text, number, unit, flag = RECORDS[(start + index) % len(RECORDS)]
    if index >= len(RECORDS):
        lap = index // len(RECORDS)
        name, plural = f"Spare{name}{lap}", f"spare_{plural}_{lap}"
    return {"name": name, "plural": plural, "text": text, "number": number, "unit": unit,
            "flag": flag, "name_lower": name.lower()}


def record_code(slots: dict[str, str], methods, functions) -> str:
    """A record class and functions on lists of it, with two empty lines before it."""
    parts = ["\n\n", HEAD, *methods, *functions]
    return "".join(part.format(**slots) for part in parts)


def build(rng: random.Random, units: int) -> Text:
    """A module of `units` records; the answer writes the next two, with nothing left out."""
    start = rng.randrange(len(RECORDS))
    module = START + "".join(
        record_code(record_slots(start, i), rng.sample(METHODS, 2), rng.sample(FUNCTIONS, 1))
        for i in range(units)
    )
    following = [record_slots(start, units + i) for i in range(2)]
    user = (
        f"Here is the module museum/collection.py.\n\n```python\n{module}```\n\nContinue the "
        f"module in the same style with the classes {following[0]['name']} and "
        f"{following[1]['name']}, each with all four methods and all three functions. Write only "
        "code."
    )
    code = "".join(record_code(slots, METHODS, FUNCTIONS) for slots in following)
    return Text(chat(user), f"```python\n{code.lstrip()}```")


KINDS = [Kind("code", "continue a Python module", (build,))]
