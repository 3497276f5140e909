"""Few-shot classification of messages to a shop."""

import random

from .kinds import ASK, Kind, Text, chat

ITEMS = (
    "kettle", "reading lamp", "rain jacket", "bicycle pump", "garden hose", "winter boots",
    "radio", "folding chair", "pocket knife", "cooking pot", "wool blanket", "head torch",
    "tea set", "fishing rod", "wall clock", "suitcase",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
COLOURS = ("green", "grey", "dark blue", "red", "yellow", "black")

# label -> messages, and a reason for the label
LABELS = {
    "delivery": (
        ("My {colour} {item} should have come on {day}, but the box is still on its way.",
         "Could you tell me whether the {item} can be left with my neighbour on {day}?",
         "The tracking page has shown the same depot for my {item} since {day}.",
         "Please send the {item} to my office instead, I am away from {day} on."),
        "asks where or when the {item} arrives"),
    "refund": (
        ("I sent the {item} back on {day} and have not seen my money yet.",
         "You charged me twice for one {colour} {item}.",
         "What do I have to do to return the {item} and be paid back?",
         "The shop promised me the price of the {item} by {day}."),
        "is about money for the {item}"),
    "account": (
        ("I cannot log in since {day}; the page says my address is unknown.",
         "Please change the name on my account before {day}.",
         "How do I delete my account? I only ever bought a {item}.",
         "The code for signing in arrives hours later, on {day} it never came."),
        "is about signing in or personal data"),
    "product": (
        ("Does the {item} also come in {colour}?",
         "How heavy is the {item}, and can a child carry it?",
         "Is the {colour} {item} safe to leave outside in the rain?",
         "Which spare parts fit the {item} that you sold last year?"),
        "wants to know something about the {item} itself"),
    "complaint": (
        ("The {item} broke on {day}, after two days of careful use.",
         "This is the third time that the {colour} {item} arrives with a scratch.",
         "Nobody at your desk would listen to me on {day}, and the {item} still rattles.",
         "The {item} smells so badly of glue that we put it in the shed."),
        "reports a fault and is unhappy about the {item}"),
    "praise": (
        ("The {item} is lovely, and it came a day before {day}!",
         "Thank you for the note in the box, it made my {day}.",
         "My father uses the {colour} {item} every day and will not lend it to anyone.",
         "Your colleague on {day} was patient with me, please tell her so."),
        "says thanks and wants nothing"),
}  # fmt: skip


def message(rng: random.Random) -> tuple[str, str, str]:
    """A message, its label, and why."""
    label = rng.choice(list(LABELS))
    texts, reason = LABELS[label]
    slots = {"item": rng.choice(ITEMS), "day": rng.choice(DAYS), "colour": rng.choice(COLOURS)}
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
        for number, (_, label, reason) in enumerate(asked, 1)
    )
    return Text(chat(user), answer)


FEWSHOT = Kind("fewshot", "label messages after many labelled examples", (build,))
KINDS = [FEWSHOT, FEWSHOT.before_question()]
