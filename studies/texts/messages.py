"""Few-shot classification of messages to a shop."""

import random

from kvsim.tasks.works import DATA as WORKS

from .kinds import ASK, Kind, Text, chat, data_of

DATA = data_of(__file__)
LABELS = DATA["labels"]   # messages, and a reason for the label


def message(rng: random.Random) -> tuple[str, str, str]:
    """A message, its label, and why."""
    label = rng.choice(list(LABELS))
    texts, reason = LABELS[label]
    slots = {"item": rng.choice(DATA["items"]), "day": rng.choice(WORKS["days"]), "colour": rng.choice(DATA["colours"])}
    return rng.choice(texts).format(**slots), label, reason.format(**slots)


def build(rng: random.Random, units: int) -> Text:
    """`units` labelled examples, then thirty messages to label."""
    shots = [message(rng) for _ in range(units)]
    asked = [message(rng) for _ in range(30)]
    examples = "\n\n".join(f"Message: {text}\nLabel: {label}" for text, label, _ in shots)
    queries = "\n".join(f"{number}. {text}" for number, (text, _, _) in enumerate(asked, 1))
    user = (
        f"Each message to our shop has one label out of {', '.join(LABELS)}. Examples:\n\n"
        f"{examples}\n\n{ASK}Label these messages in the same way and give a short reason.\n{queries}"
    )
    answer = "\n".join(
        f"{number}. {label}: the message {reason}."
        for number, (_, label, reason) in enumerate(asked, 1))
    return Text(chat(user), answer)


FEWSHOT = Kind("fewshot", "label messages after many labelled examples", (build,))
KINDS = [FEWSHOT, FEWSHOT.before_question()]
