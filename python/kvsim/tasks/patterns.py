"""Tasks that go on with what the context shows: labels after examples, a sentence word for word."""

import random

from ..texts import messages
from ..texts.world import PLACES, person
from .kinds import Instance, Task, holds, names_first
from .lookups import sentences

GROUPS = {
    "animal": ("horse", "cow", "dog", "cat", "wolf", "bear", "fox", "goat", "sheep", "hen"),
    "tool": ("hammer", "saw", "drill", "axe", "file", "chisel", "spade", "rake", "pliers", "wrench"),
    "fruit": ("apple", "pear", "plum", "grape", "cherry", "lemon", "melon", "peach", "fig", "lime"),
}
CODES = ("red", "blue", "green")


def examples(rng: random.Random, number: int, names: dict[str, str], line: str) -> Instance:
    """12 or 24 words with the names of their groups, then one more word."""
    each = (4, 8)[number // len(GROUPS) % 2]
    picked = {group: rng.sample(members, each + 1) for group, members in GROUPS.items()}
    shown = [(word, names[group]) for group, members in picked.items() for word in members[:-1]]
    rng.shuffle(shown)
    group = list(GROUPS)[number % len(GROUPS)]
    before, cue = line.split("|")
    listed = "".join(f"{before.format(word)}{cue} {name}\n\n" for word, name in shown)
    return Instance(listed, before.format(picked[group][-1]), names[group], cue=cue)


def labels(rng: random.Random, number: int) -> Instance:
    return examples(rng, number, {group: group for group in GROUPS}, "Word: {}\nGroup|:")


def codes(rng: random.Random, number: int) -> Instance:
    """Only the examples say which group has which colour."""
    return examples(rng, number, dict(zip(GROUPS, rng.sample(CODES, len(CODES)))), "{}| ->")


def recall(rng: random.Random, number: int) -> Instance:
    sentence = f"{person(rng)} left the keys at {rng.choice(PLACES)} on {rng.choice(messages.DATA['days'])}."
    rest = " ".join(sentences(rng, 1 + number % 2))
    return Instance(f"{sentence} {rest}", "Repeat the first sentence of this text word for word.",
                    sentence)


TASKS = [
    Task("labels", "groups of words, after 12 or 24 examples", labels, names_first(tuple(GROUPS)), 3),
    Task("codes", "the same with names that only the examples explain", codes, names_first(CODES), 3),
    Task("recall", "the first sentence of a text, word for word", recall, holds, 20),
]
