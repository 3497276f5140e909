"""Code completion: a Python module of small record classes, continued in its own style."""

import random

from .kinds import Kind, Text, chat, data_of

DATA = data_of(__file__)
RECORDS, METHODS, FUNCTIONS = DATA["records"], DATA["methods"], DATA["functions"]


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
    parts = ["\n\n", DATA["head"], *methods, *functions]
    return "".join(part.format(**slots) for part in parts)


def build(rng: random.Random, units: int) -> Text:
    """A module of `units` records; the answer writes the next two, with nothing left out."""
    start = rng.randrange(len(RECORDS))
    module = DATA["start"] + "".join(
        record_code(record_slots(start, i), rng.sample(METHODS, 2), rng.sample(FUNCTIONS, 1))
        for i in range(units))
    following = [record_slots(start, units + i) for i in range(2)]
    user = (
        f"Here is the module museum/collection.py.\n\n```python\n{module}```\n\nContinue the "
        f"module in the same style with the classes {following[0]['name']} and "
        f"{following[1]['name']}, each with all four methods and all three functions. Write only "
        "code.")
    code = "".join(record_code(slots, METHODS, FUNCTIONS) for slots in following)
    return Text(chat(user), f"```python\n{code.lstrip()}```")


KINDS = [Kind("code", "continue a Python module", (build,))]
