"""An invented island county: people, places and public works, the facts behind the texts."""

import random
import tomllib
from dataclasses import dataclass
from pathlib import Path

DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PLACES, FIRST_NAMES, LAST_NAMES = DATA["places"], DATA["first_names"], DATA["last_names"]
PARTS = ("openings", "findings", "actions", "money", "doubts", "results")   # of a section


@dataclass
class Work:
    """One piece of public work, as every text about it tells it."""

    place: str
    thing: str
    fault: str
    cause: str
    remedy: str
    result: str
    leader: str
    critic: str
    year: int
    months: int
    cost: int
    workers: int

    @property
    def title(self) -> str:
        return f"the {self.thing} at {self.place}"


def person(rng: random.Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def works(rng: random.Random, count: int) -> list[Work]:
    """`count` works, no two of one thing at one place."""
    places, kinds = list(PLACES), list(DATA["works"])
    rng.shuffle(places)
    rng.shuffle(kinds)
    found = []
    for i in range(count):
        # Both lists turn at different speeds, so that pairs do not repeat for 24 * 22 works.
        thing, fault, cause, remedy, result = kinds[i % len(kinds)]
        place = places[(i + i // len(kinds)) % len(places)]
        found.append(Work(place, thing, fault, cause, remedy, result, person(rng), person(rng),
                          rng.randint(1961, 2019), rng.randint(2, 19), 100 * rng.randint(14, 960),
                          rng.randint(3, 48)))
    return found


def sentence(text: str) -> str:
    """Its first letter as a capital, whatever it begins with."""
    return text[0].upper() + text[1:]


def fill(template: str, work: Work) -> str:
    """A template of the texts with the facts of a work."""
    values = vars(work) | {"title": work.title, "cost": f"{work.cost:,}"}
    return sentence(template.format(**values))


def section(rng: random.Random, work: Work) -> str:
    """A paragraph of about a hundred words."""
    return " ".join(fill(rng.choice(DATA[part]), work) for part in PARTS)
