"""Synthetic counting: a log of stones put into a jar and the running totals."""

import random

from kvsim.tasks.works import FIRST_NAMES

from .kinds import Kind, Text, chat

COLOURS = ("red", "blue", "white", "green")
NUMBERS = ("one", "two", "three", "four", "five")


def build(rng: random.Random, units: int) -> Text:
    """`units` lines of log; the answer counts along line by line."""
    totals = dict.fromkeys(COLOURS, 0)
    lines, answers = [], []
    for line in range(1, units + 1):
        name, colour = rng.choice(FIRST_NAMES), rng.choice(COLOURS)
        amount = rng.randint(1, 5)
        takes = amount <= totals[colour] and rng.random() < 0.3
        totals[colour] += -amount if takes else amount
        verb = "takes" if takes else "puts"
        where = "out of the jar" if takes else "into the jar"
        stones = "stone" if amount == 1 else "stones"
        lines.append(f"{line}. {name} {verb} {NUMBERS[amount - 1]} {colour} {stones} {where}.")
        state = ", ".join(f"{colour} {count}" for colour, count in totals.items())
        answers.append(f"After line {line}: {state}.")
    user = (
        "The jar is empty at first. Read the log and write how many stones of each colour are in "
        "the jar after each line.\n\n" + "\n".join(lines))
    return Text(chat(user), "\n".join(answers))


KINDS = [Kind("counting", "running totals over a log", (build,))]
