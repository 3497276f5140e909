"""Facts to find: one among sentences, several, a row of a list."""

import random

from ..texts.reports import section
from ..texts.world import FIRST_NAMES, LAST_NAMES, works
from .kinds import Instance, Task, holds, names_all

DEPTHS = 5   # what is asked for stands at one of so many depths, in turn


def depth(number: int) -> float:
    """From 0, the beginning, to 1."""
    return number % DEPTHS / (DEPTHS - 1)


def length(number: int) -> int:
    """0 for short contexts, 1 for long ones; each with all depths."""
    return number // DEPTHS % 2


def sentences(rng: random.Random, sections: int) -> list[str]:
    """Sentences that facts hide in: reports about public works, about 130 tokens a section."""
    return [f"{one.rstrip('.')}." for work in works(rng, sections)
            for one in section(rng, work).split(". ")]


def hide(rng: random.Random, facts: list[str], number: int) -> str:
    """One fact at the depth of the number, or several evenly spread, among sentences."""
    body = sentences(rng, 1 + length(number))
    for i, fact in enumerate(facts):
        at = depth(number) if len(facts) == 1 else (i + 0.5) / len(facts)
        body.insert(round(at * (len(body) - i)) + i, fact)
    return " ".join(body)


def secrets(rng: random.Random, count: int) -> dict[str, int]:
    return {name: rng.randint(1000, 9999) for name in rng.sample(FIRST_NAMES, count)}


def told(secret: dict[str, int]) -> list[str]:
    return [f"The secret number of {name} is {value}." for name, value in secret.items()]


def asked(name: str) -> str:
    return f"What is the secret number of {name}? Answer with the number only."


def needle(rng: random.Random, number: int) -> Instance:
    known = secrets(rng, 1)
    [(name, value)] = known.items()
    return Instance(hide(rng, told(known), number), asked(name), str(value))


def needle_of_three(rng: random.Random, number: int) -> Instance:
    known = secrets(rng, 3)
    name = list(known)[number % 3]
    return Instance(hide(rng, told(known), number), asked(name), str(known[name]))


def two_needles(rng: random.Random, number: int) -> Instance:
    known = secrets(rng, 2)
    one, other = known
    return Instance(hide(rng, told(known), number),
                    f"What is the secret number of {one}, and what is the secret number of {other}?",
                    f"{known[one]} {known[other]}")


def lookup(rng: random.Random, number: int) -> Instance:
    count = (8, 16)[length(number)]
    rows = {name: rng.randint(100, 999) for name in rng.sample(LAST_NAMES, count)}
    name = list(rows)[round(depth(number) * (count - 1))]
    listed = "\n".join(f"{one}: room {room}" for one, room in rows.items())
    return Instance(f"Rooms of the guests, in the order of their arrival:\n{listed}\n\n",
                    "The same list in the order of the alphabet, as far as it was copied:\n" + name,
                    str(rows[name]), cue=": room")


TASKS = [
    Task("needle", "one number among sentences, at five depths", needle, names_all, 15),
    Task("needle-of-three", "one of three numbers among sentences", needle_of_three, names_all, 15),
    Task("two-needles", "two numbers among sentences, both asked for", two_needles, names_all, 32),
    Task("lookup", "a row of a list of 8 or 16, at five depths", lookup, holds, 4)]
