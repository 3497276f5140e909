"""Texts written by script for the study of where an order holds, of kinds that no choice of a policy ever saw.

`studies/make.sh generated DIR` writes TEXTS of each of KINDS as generated/KIND-SEED.txt, of at least LENGTH
characters, to be continued as they stand. Their names, words and numbers follow from the seed alone.
"""

import argparse
import json
import random
from pathlib import Path

TEXTS, LENGTH = 2, 6000
PEOPLE = ("Amara", "Bruno", "Chiyo", "Dalia", "Emeka", "Farah", "Gustav", "Hana", "Ivo", "Jun", "Kira", "Leif")
TOWNS = ("Porto", "Lagos", "Kyoto", "Turku", "Quito", "Izmir", "Perth", "Riga", "Cusco", "Leeds")
GOODS = ("lamp", "kettle", "ladder", "basket", "mirror", "bicycle", "tent", "radio", "carpet", "chair", "clock", "drill")
HOSTS = ("gate", "mail", "store", "search", "queue", "login")
EVENTS = ("accepted a connection", "closed a connection", "wrote a page", "read a page", "refused a token", "tried again")
TOPICS = ("the bridge", "the garden", "the ferry", "the archive", "the well", "the market")


def records(rng: random.Random) -> str:
    """Orders as lines of JSON; customers come back with the same town."""
    towns = {name: rng.choice(TOWNS) for name in PEOPLE}
    text = ""
    while len(text) < LENGTH:
        name = rng.choice(PEOPLE)
        items = [{"item": rng.choice(GOODS), "count": rng.randint(1, 9), "price": rng.randint(3, 400)}
                 for _ in range(rng.randint(1, 3))]
        text += json.dumps({"order": rng.randint(1000, 9999), "customer": name, "town": towns[name], "items": items,
                            "total": sum(one["count"] * one["price"] for one in items)}) + "\n"
    return text


def log(rng: random.Random) -> str:
    """A log of services; requests come back under their number."""
    text, second, open_ = "", rng.randint(0, 40000), []
    while len(text) < LENGTH:
        second += rng.randint(1, 20)
        if not open_ or rng.random() < 0.3:
            open_.append(f"{rng.randrange(16 ** 6):06x}")
        request = rng.choice(open_[-6:])
        text += (f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d} {rng.choice(HOSTS)}[{rng.randint(100, 140)}]: "
                 f"request {request} {rng.choice(EVENTS)} after {rng.randint(1, 900)} ms\n")
    return text


def dialogue(rng: random.Random) -> str:
    """Two people plan a journey, and come back to what was agreed."""
    first, second = rng.sample(PEOPLE, 2)
    agreed, text = [], ""
    while len(text) < LENGTH:
        town, topic, hour = rng.choice(TOWNS), rng.choice(TOPICS), rng.randint(7, 20)
        text += f"{first}: Shall we see {topic} in {town}? It opens at {hour}.\n"
        if agreed and rng.random() < 0.5:
            then, where, when = rng.choice(agreed)
            text += (f"{second}: Before that, when did we say we would be at {then} in {where}?\n"
                     f"{first}: At {when}, as you wanted.\n")
        text += f"{second}: " + rng.choice(("Yes, I wrote it down.", "Good, but not a minute later.", "If the train is on time, gladly.")) + "\n"
        agreed.append((topic, town, hour))
    return text


def lesson(rng: random.Random) -> str:
    """Sums worked step by step."""
    text = ""
    while len(text) < LENGTH:
        a, b, c = rng.randint(11, 98), rng.randint(11, 98), rng.randint(2, 9)
        name, good = rng.choice(PEOPLE), rng.choice(GOODS)
        text += (f"{name} buys {c} of the {good}s for {a} coins each and pays {b} coins for the way home. How many coins is that?\n"
                 f"First {c} times {a}: {c} * {a // 10 * 10} = {c * (a // 10 * 10)}, {c} * {a % 10} = {c * (a % 10)}, together {c * a}.\n"
                 f"Then {c * a} + {b} = {c * a + b}. The answer is {c * a + b}.\n\n")
    return text


def catalogue(rng: random.Random) -> str:
    """A catalogue in XML whose entries name each other."""
    text, numbers = "<catalogue>\n", [f"G{rng.randint(100, 999)}"]
    while len(text) < LENGTH:
        numbers.append(f"G{rng.randint(100, 999)}")
        text += (f'  <good id="{numbers[-1]}" town="{rng.choice(TOWNS)}">\n    <name>{rng.choice(GOODS)} of {rng.choice(PEOPLE)}</name>\n'
                 f'    <price unit="coin">{rng.randint(3, 400)}</price>\n    <goes-with ref="{rng.choice(numbers[:-1])}"/>\n  </good>\n')
    return text


KINDS = (records, log, dialogue, lesson, catalogue)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        for seed in range(TEXTS):
            (folder / f"{kind.__name__}-{seed}.txt").write_text(kind(random.Random(f"{kind.__name__}/{seed}")))


if __name__ == "__main__":
    main()
